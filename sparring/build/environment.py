"""The environment that a recipe names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparring.config import Config
from sparring.environments import Environment
from sparring.errors import UsageError
from sparring.plugins import load_object
from sparring.tracking.recipe_files import check_links
from sparring.workers import Code, WorkerPool


def environment_of(config: Config, recipe_dir: Path) -> tuple[Callable[[], Environment], type[Environment]]:
    """A factory of fresh environments, and their class. Raises UsageError when the target is no Environment."""
    found, options = environment_target(config, recipe_dir)
    environment_class = found.with_options(**options)
    environment_class.tool_schemas()
    return lambda: environment_class(**options), environment_class


def worker_pool(config: Config, recipe_dir: Path) -> WorkerPool | None:
    """The processes that environments, reward and scorer run in; none is started yet. None where they run in this process.
    Raises UsageError for options that cannot be sent there."""
    section = config.environment
    if section.workers == 0:
        return None
    code: Code = {
        "beside": str(recipe_dir.absolute()), "target": section.target, "options": section.options,
        "reward": config.reward.reward, "scorer": config.reward.scorer,
    }  # fmt: skip
    return WorkerPool(section.workers, code, silence_seconds=section.worker_timeout)


def refuse_training(config: Config, recipe_dir: Path) -> None:
    """Raises UsageError when nobody may train in the recipe's environment."""
    if config.environment.target is None:
        return
    found, options = environment_target(config, recipe_dir)
    reason = found.evaluation_only(**options)
    if reason is not None:
        raise UsageError(
            f"environment.target = {config.environment.target!r} may be evaluated in and not trained in: {reason}"
        )


def environment_target(config: Config, recipe_dir: Path) -> tuple[type[Environment], dict[str, Any]]:
    """The class that the recipe names and its options, which fit it. Raises UsageError, and DataError as `check_links` does."""
    if config.environment.target is None:
        raise UsageError("environment.target is missing: name the `module:Class` of an Environment.")
    check_links(recipe_dir)
    found = load_object(config.environment.target, beside=recipe_dir)
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
            "Name the arguments of its __init__."
        ) from error
    return found, options
