"""Load the environment that a recipe names."""

from __future__ import annotations

import inspect
import os
import secrets
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparring.config import Config, key_from
from sparring.environments import Environment
from sparring.errors import UsageError
from sparring.run_folders.recipe_files import check_links, list_files
from sparring.runtime.address import read_address
from sparring.runtime.plugins import load_object
from sparring.workers import Code, Listening, WorkerPool


def load_environment(config: Config, recipe_dir: Path) -> tuple[Callable[[], Environment], type[Environment]]:
    """Return a factory of new environments, and their class. Raises UsageError if the target is not an Environment."""
    found, options = load_environment_class(config, recipe_dir)
    environment_class = found.with_options(**options)
    environment_class.tool_schemas()
    return lambda: environment_class(**options), environment_class


def build_worker_pool(
    config: Config, recipe_dir: Path, announce: Callable[[str], object], folder: Path | None = None
) -> WorkerPool | None:
    """Return the pool of workers for environments, reward and scorer, or None if they run in this process.

    No worker process is started yet, and no address is listened on. `announce` shows how to start workers on other
    machines. Raises UsageError for options that cannot be sent to a worker, and for a key or a certificate that is
    missing.
    """
    section = config.environment
    if not section.has_workers:
        return None
    code: Code = {
        "folder": str(recipe_dir.absolute()),
        "target": section.target,
        "options": section.options,
        "reward": config.reward.reward,
        "scorer": config.reward.scorer,
    }
    listening = None
    if section.listen or config.launches_workers:
        listening = _read_listening(config, recipe_dir, announce)
    if listening is not None and config.launches_workers:
        listening = _launch_workers(config, listening, folder or Path(tempfile.mkdtemp(prefix="sparring-workers-")))
    num_here = 0 if config.launches_workers else section.workers
    return WorkerPool(num_here, code, silence_seconds=section.worker_timeout, listening=listening)


def _launch_workers(config: Config, listening: Listening, folder: Path) -> Listening:
    """Return where the workers of a cluster connect, which are started when the run begins to listen there."""
    key = listening.key.decode() or secrets.token_hex(32)

    def launch(port: int) -> Callable[[], None]:
        from sparring.runtime.ray_launcher import RayLauncher
        from sparring.workers.launched import launch_workers

        cluster = RayLauncher(config.run.ray_address, folder)
        return launch_workers(cluster, config.environment.workers, port=port, key=key, folder=folder)

    return replace(listening, key=key.encode(), launch=launch)


def _read_listening(config: Config, recipe_dir: Path, announce: Callable[[str], object]) -> Listening:
    section = config.environment
    address = read_address(section.listen or "0.0.0.0:0")
    key = ""
    if os.environ.get(section.api_key_env):
        key = key_from(section.api_key_env) or ""
    elif section.listen and not address.is_loopback:
        raise UsageError(
            f"environment.listen = {section.listen!r} can be reached from other machines, and the environment variable "
            f"{section.api_key_env} is not set. Set it to a long random key here and for each `sparring worker`, for example "
            "with the output of `openssl rand -hex 32`. Without a key, listen on 127.0.0.1."
        )
    return Listening(
        address=address,
        key=key.encode(),
        files=list_files(recipe_dir / "recipe.toml", Path(config.run.runs_dir)),
        timeout_seconds=section.listen_timeout,
        announce=announce,
        tls=_load_certificate(section.tls_certificate, section.tls_key),
    )


def _load_certificate(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    if certificate is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise UsageError(
            f"environment.tls_certificate = {certificate!r} and environment.tls_key = {key!r} cannot be loaded: {error}. Give "
            "a certificate and its private key, without a password, as PEM files."
        ) from error
    return context


def refuse_training(config: Config, recipe_dir: Path) -> None:
    """Raise UsageError if the recipe's environment does not allow training."""
    if config.environment.target is None:
        return
    found, options = load_environment_class(config, recipe_dir)
    reason = found.evaluation_only(**options)
    if reason is not None:
        raise UsageError(
            f"environment.target = {config.environment.target!r} may be used for evaluation but not for training: {reason}"
        )


def load_environment_class(config: Config, recipe_dir: Path) -> tuple[type[Environment], dict[str, Any]]:
    """Return the class that the recipe names, and its checked options. Raises UsageError, and the DataError that
    `check_links` raises."""
    if config.environment.target is None:
        raise UsageError("environment.target is missing; set it to the `module:Class` of an Environment.")
    check_links(recipe_dir)
    found = load_object(config.environment.target, folder=recipe_dir)
    if not (inspect.isclass(found) and issubclass(found, Environment)):
        raise UsageError(
            f"environment.target = {config.environment.target!r} is {found!r}, not a class derived from "
            "sparring.environments.Environment; derive it, and mark its tools with @tool."
        )
    options = dict(config.environment.options)
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        raise UsageError(
            f"environment.options = {options} do not fit {found.__name__}{inspect.signature(found)}: {error}. "
            "Give only arguments of its __init__."
        ) from error
    return found, options
