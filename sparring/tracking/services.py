"""The services that a recipe exports its runs to: MLflow, TensorBoard and Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparring.config import TrackingSection
from sparring.types import Json

REQUEST_SECONDS = 10
_MLFLOW_REQUESTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
    # `deliver` itself retries and reports outages.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Everything that the process prints is logged as a warning.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_WANDB_QUIET = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_ERROR_REPORTING": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service to which the exporter process sends the data of a run."""

    key: str
    """Its setting in `[tracking]`, its library and its entry in `RECEIVERS`."""
    title: str
    """Its name in messages."""
    address: str
    """What distinguishes this destination from others of the service. At a new address, a delivery starts anew."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """The arguments of its receiver."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the exporter process, unless the user has set them."""
    redact: tuple[str, ...] = ()
    """The rules by which the texts that it receives are redacted."""


def requested_services(section: TrackingSection, folder: Path) -> list[Service]:
    """Return the services that a recipe requests for the run in `folder`."""
    services = []
    if section.mlflow:
        uri = section.mlflow_uri or f"sqlite:///{(folder / 'mlflow.sqlite').resolve()}"
        services.append(mlflow(uri=uri, experiment=section.mlflow_experiment_name))
    if section.tensorboard:
        services.append(tensorboard())
    if section.wandb:
        variable = os.environ.get("WANDB_MODE", "").lower()
        mode = section.wandb_mode or ("offline" if variable in ("offline", "dryrun") else "online")
        services.append(wandb(project=section.wandb_project, entity=section.wandb_entity, mode=mode))
    return [replace(service, redact=section.redact) for service in services]


def mlflow(*, uri: str, experiment: str) -> Service:
    """Return the MLflow server at `uri`."""
    return Service(
        key="mlflow",
        title="MLflow",
        address=uri,
        options={"uri": uri, "experiment": experiment},
        environment=_MLFLOW_REQUESTS,
    )


def tensorboard() -> Service:
    """Return the event file for TensorBoard in the run folder."""
    return Service(key="tensorboard", title="TensorBoard", address="tensorboard")


def wandb(*, project: str, entity: str | None, mode: str) -> Service:
    """Return a project at Weights & Biases. In the mode `offline`, only files are written."""
    return Service(
        key="wandb",
        title="Weights & Biases",
        address=f"{mode} {entity or ''}/{project}",
        options={"project": project, "entity": entity, "mode": mode},
        environment=_WANDB_QUIET,
    )
