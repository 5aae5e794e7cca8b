"""Load the environment that a recipe names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparring.config import Config
from sparring.environments import Environment
from sparring.errors import UsageError
from sparring.run_folders.recipe_files import check_links
from sparring.runtime.plugins import load_object
from sparring.workers import Code, WorkerPool


def load_environment(config: Config, recipe_dir: Path) -> tuple[Callable[[], Environment], type[Environment]]:
    """Return a factory of new environments, and their class. Raises UsageError if the target is not an Environment."""
    found, options = load_environment_class(config, recipe_dir)
    environment_class = found.with_options(**options)
    environment_class.tool_schemas()
    return lambda: environment_class(**options), environment_class


def build_worker_pool(config: Config, recipe_dir: Path) -> WorkerPool | None:
    """Return the pool of worker processes for environments, reward and scorer, or None if they run in this process.

    No worker process is started yet. Raises UsageError for options that cannot be sent to a worker.
    """
    section = config.environment
    if section.workers == 0:
        return None
    code: Code = {
        "folder": str(recipe_dir.absolute()),
        "target": section.target,
        "options": section.options,
        "reward": config.reward.reward,
        "scorer": config.reward.scorer,
    }
    return WorkerPool(section.workers, code, silence_seconds=section.worker_timeout)


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
