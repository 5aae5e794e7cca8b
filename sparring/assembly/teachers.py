"""Build the teachers of on-policy distillation, which the recipe names for all tasks or for each kind of task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparring.algorithms.choice import WITHOUT_REWARD
from sparring.config import Config, key_from
from sparring.errors import DataError, ServiceError
from sparring.protocols import Engine
from sparring.rollouts.curriculum import read_task_kind
from sparring.training.distillation import LogprobSource, Teacher, Teachers
from sparring.types import Task


def check_kinds_of_teachers(config: Config, tasks: Sequence[Task]) -> None:
    """Check that the kinds of the teachers are those of the training tasks.

    Raises DataError if no task has a kind for which there is a teacher, or if the tasks of a kind have neither a teacher nor
    advantages from rewards.
    """
    field, taught = config.curriculum.kind_field, config.algorithm.teachers.keys()
    if field is None or not isinstance(config.algorithm.teacher, dict):
        return
    kinds = {read_task_kind(task, field) for task in tasks}
    if unknown := sorted(taught - kinds):
        raise DataError(
            f"algorithm.teacher names {', '.join(map(repr, unknown))}, but no training task has this value of {field!r}. The "
            f"values are {', '.join(map(repr, sorted(kinds)))}."
        )
    untaught = sorted(kinds - taught)
    if untaught and config.algorithm.advantage_method in WITHOUT_REWARD:
        raise DataError(
            f"algorithm.teacher names no teacher for {', '.join(map(repr, untaught))}, and advantage_method = "
            f"{config.algorithm.advantage_method!r} does not read rewards, so nothing would be learned from these tasks. Name a "
            "teacher for each kind, choose a method that reads rewards, or leave these tasks out."
        )


def build_teachers(
    config: Config, frozen: Mapping[str, Engine], tokenizer: Any, *, kind_of: Callable[[Task], str] | None
) -> Teachers | None:
    """Return the teachers that the recipe names: frozen policies, or models on vLLM servers.

    Raises ServiceError if an endpoint returns no log-probabilities of given ids, or has another vocabulary.
    """
    names = config.algorithm.teachers
    if not names:
        return None
    known: dict[str, Teacher] = {}
    for name in names.values():
        if name not in known:
            source = frozen[name] if name in frozen else _connect_teacher(config, name, tokenizer)
            known[name] = Teacher(name=name, source=source, coef=config.algorithm.teacher_coef)
    by_kind = {kind: known[name] for kind, name in names.items()}
    return Teachers(by_kind=by_kind, kind_of=_any_kind if "" in names or kind_of is None else kind_of)


def _any_kind(_task: Task) -> str:
    return ""


def _connect_teacher(config: Config, name: str, tokenizer: Any) -> LogprobSource:
    from sparring.engines.servers.teacher import ServerTeacher

    section = config.policies[name]
    assert section.base_url is not None and section.model is not None, "the configuration requires both"  # noqa: PT018
    try:
        return ServerTeacher(
            section.base_url, section.model, tokenizer=tokenizer, api_key=key_from(section.api_key_env)
        )
    except ServiceError as error:
        raise ServiceError(
            f"policies.{name} cannot be the teacher, which returns log-probabilities of the policy's token ids: {error}"
        ) from error
