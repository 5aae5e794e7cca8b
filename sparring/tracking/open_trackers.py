"""Open the trackers that a recipe requests, and combine them into one."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparring.config import Config, TrackingSection
from sparring.errors import ServiceError, UsageError
from sparring.protocols import Tracker
from sparring.run_folders.run_folder import RunFolder
from sparring.runtime.logs import get_logger
from sparring.tracking.console import Console
from sparring.tracking.exporter import Exporter
from sparring.tracking.fan_out import FanOut
from sparring.tracking.local import LocalTracker
from sparring.tracking.services import Service, requested_services
from sparring.tracking.webhook import Webhook, webhook_url
from sparring.web.certificate import Certificate
from sparring.web.gate import Gate
from sparring.web.keys import Keys

logger = get_logger(__name__)


def open_trackers(config: Config, folder: RunFolder, console: Console) -> Tracker:
    """Return a tracker for the run's files, the console, and every other tracker in the recipe.

    Raises ServiceError if a library is not installed, and UsageError if the variable of a webhook does not contain an
    address, or if the keys or the certificate of Prometheus's address cannot be read.
    """
    section = config.tracking
    trackers: list[Tracker] = [LocalTracker(folder.path), console]
    services = requested_services(section, folder.path)
    require_libraries(services)
    trackers += [Exporter(folder.path, service) for service in services]
    for key in ("prometheus_address", "prometheus_textfile_dir"):
        if getattr(section, key) is not None:
            _require("prometheus_client", f"tracking.{key}")
    trackers += _prometheus(section, folder, console)
    if section.webhook_url_env is not None:
        try:
            url = webhook_url(section.webhook_url_env, os.environ.get(section.webhook_url_env))
        except ValueError as error:
            raise UsageError(f"{error}; set it, or remove tracking.webhook_url_env.") from None
        trackers.append(Webhook(url, run=folder.path.name, redact=section.redact))
    return FanOut(trackers)


def require_libraries(services: Sequence[Service]) -> None:
    """Raise ServiceError if the library of a service is not installed.

    No library is imported here, because this takes seconds. The exporter process loads it.
    """
    for service in services:
        _require(service.key, f"tracking.{service.key}")


def _require(library: str, key: str) -> None:
    found = importlib.util.find_spec(library)
    # A folder of this name, such as the one that wandb creates in the working folder, is found without an origin.
    if found is None or found.origin is None:
        extra = {"prometheus_client": "prometheus"}.get(library, library)
        raise ServiceError(
            f"{key} is set, but {library} is not installed. Install it with `pip install 'sparring[{extra}]'`, or "
            f"remove {key}"
            "."
        )


def _prometheus(section: TrackingSection, folder: RunFolder, console: Console) -> list[Tracker]:
    """Return the Prometheus trackers that can be opened. An address that is already in use, for example by another run,
    must not stop this run."""
    trackers: list[Tracker] = []
    run, address = folder.path.name, section.prometheus_address
    if address is not None:
        keys, certificate, key = section.prometheus_keys, section.prometheus_tls_certificate, section.prometheus_tls_key
        gate = None if keys is None else Gate("metrics", Keys.of_file(Path(keys)))
        tls = None if certificate is None or key is None else Certificate(Path(certificate), Path(key))
        with _unless_refused(f"the address {address} cannot be opened"):
            trackers.append(_tracker_class()(address, run=run, gate=gate, tls=tls, report=console.announced))
    if section.prometheus_textfile_dir is not None:
        textfile = Path(section.prometheus_textfile_dir) / f"sparring-{run}.prom"
        with _unless_refused(f"{textfile} cannot be written"):
            trackers.append(_tracker_class()(run=run, textfile=textfile.absolute()))
    return trackers


def _tracker_class() -> Any:
    """Return the tracker's class. It is imported only when it is needed, because the library is optional."""
    return importlib.import_module("sparring.tracking.prometheus").PrometheusTracker


@contextmanager
def _unless_refused(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        logger.warning("tracking: %s (%s); the run continues without it.", what, error)
