"""Load the three splits of a recipe's data, and define the order of its training tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sparring.assembly.environment import load_environment_class
from sparring.config import Config
from sparring.config.sections import DataSection
from sparring.data import SCHEME, parse_address, pin_address, read_hub_tasks, read_tasks, split_tasks
from sparring.environments import Environment
from sparring.environments.base import EVALUATION_ONLY
from sparring.errors import DataError, UsageError
from sparring.rollouts import Curriculum, TaskKinds, TaskSelection
from sparring.rollouts.curriculum import read_task_kind
from sparring.runtime.plugins import call_in_thread, load_object
from sparring.types import Sampling, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The three splits of the data. No task is in more than one split."""

    train: tuple[Task, ...]
    validation: tuple[Task, ...]
    held_out: tuple[Task, ...]


def load_tasks(config: Config, recipe_dir: Path, *, is_trained: bool = True) -> Tasks:
    """Load the splits from files or functions. A split that the recipe does not name is taken from the training data.

    If the policy is not trained and the recipe specifies the held-out tasks, no training data is needed. Raises
    DataError if a required split is empty or two splits share a task id. Raises UsageError if training tasks are for
    evaluation only.
    """
    data = config.data
    needs_train = is_trained or data.held_out is None
    if data.train is None and needs_train:
        raise UsageError(
            "data.train is missing; set it to a dataset file, an address hf://OWNER/NAME, or a 'module:function' that returns "
            "Tasks."
        )
    train = [] if data.train is None else _tasks_from(data, "train", recipe_dir)
    validation = None if data.validation is None else _tasks_from(data, "validation", recipe_dir)
    held_out = None if data.held_out is None else _tasks_from(data, "held_out", recipe_dir)
    fractions = {
        "validation": data.validation_fraction if validation is None else 0.0,
        "held_out": data.held_out_fraction if held_out is None else 0.0,
    }
    splits = split_tasks(train, fractions, seed=config.run.seed)
    tasks = Tasks(
        train=tuple(splits["train"]),
        validation=tuple(splits["validation"] if validation is None else validation),
        held_out=tuple(splits["held_out"] if held_out is None else held_out),
    )
    if not tasks.train and needs_train:
        raise DataError(f"data.train = {data.train!r} leaves no training task after splitting; add tasks.")
    if is_trained and config.is_trainable:
        _refuse_evaluation_only(config, recipe_dir, tasks.train)
    named = {"train": tasks.train, "validation": tasks.validation, "held_out": tasks.held_out}
    seen: dict[str, str] = {}
    for split, members in named.items():
        for task in members:
            if seen.setdefault(task.id, split) != split:
                raise DataError(
                    f"task id {task.id!r} is in {seen[task.id]} and in {split}, but evaluation must not use training tasks; "
                    "put every task into one split only, with its own id."
                )
    return tasks


def pin_data(config: Config) -> tuple[Config, dict[str, str]]:
    """Return the configuration with the commits of its data sets of the hub, so that a resumed run reads the same rows even
    if a branch has moved, and the commit of each address that had none. Raises the errors of `pin_address`."""
    named = {split: getattr(config.data, split) for split in ("train", "validation", "held_out")}
    pinned = {
        split: pin_address(source)
        for split, source in named.items()
        if source is not None and source.startswith(SCHEME)
    }
    changed = {split: source for split, source in pinned.items() if source != named[split]}
    commits = {named[split]: str(parse_address(source).revision) for split, source in changed.items()}
    return config.model_copy(update={"data": config.data.model_copy(update=changed)}), commits


def _refuse_evaluation_only(config: Config, recipe_dir: Path, tasks: Sequence[Task]) -> None:
    """Raise UsageError for a task that must not be trained on. `refuse_training` has already checked whether the
    environment allows training."""
    reason = next((task.fields[EVALUATION_ONLY] for task in tasks if EVALUATION_ONLY in task.fields), None)
    if reason is None:
        return
    if config.environment.target is not None:
        found, _ = load_environment_class(config, recipe_dir)
        if found.evaluation_only.__func__ is not Environment.evaluation_only.__func__:
            return
    raise UsageError(
        f"data.train = {config.data.train!r} returns tasks that may be used for evaluation but not for training: {reason}\n"
        "Only evaluate on them. If you have the right to train on them, state the reason in the code that creates the "
        'tasks, for example sop_bench.tasks(..., i_have_training_rights="who allows it, and where").'
    )


def _tasks_from(data: DataSection, split: str, recipe_dir: Path) -> list[Task]:
    source: str = getattr(data, split)
    if source.startswith(SCHEME):
        return read_hub_tasks(source, recipe_dir, data.columns)
    if ":" not in source:
        path = Path(source)
        return read_tasks(path if path.is_absolute() else recipe_dir / path, data.columns)
    function = load_object(source, folder=recipe_dir)
    tasks = call_in_thread(function)
    if not isinstance(tasks, Sequence) or not all(isinstance(task, Task) for task in tasks):
        raise DataError(
            f"data.{split} = {source!r} returned {type(tasks).__name__}, not a list of sparring.types.Task."
        )
    return list(tasks)


def load_task_kinds(config: Config, tasks: Tasks) -> Callable[[Task], str] | None:
    """Return the function that names a task's kind, or None if the recipe has no kinds.

    Raises DataError immediately for a task without a kind, not only when the task runs.
    """
    if config.curriculum.kind_field is None:
        return None
    kind_of = partial(read_task_kind, field=config.curriculum.kind_field)
    for task in (*tasks.validation, *tasks.held_out):
        kind_of(task)
    return kind_of


def load_curriculum(config: Config, tasks: Sequence[Task], *, label: str = "") -> Curriculum:
    """Build the curriculum of the training tasks. Raises DataError for tasks without a kind."""
    section = config.curriculum
    return Curriculum(
        tasks,
        seed=config.run.seed,
        max_epochs=config.schedule.max_epochs,
        group_size=config.batch.group_size,
        sampling=Sampling(
            temperature=config.sampling.temperature,
            top_p=config.sampling.sampling_top_p,
            max_tokens=config.sampling.sampling_max_tokens,
        ),
        selection=TaskSelection(
            select=section.select,
            easy_threshold=section.easy_threshold,
            hard_threshold=section.hard_threshold,
            retry_share=section.retry_share,
            history_groups=section.history_groups,
            success_threshold=config.evaluation.success_threshold,
        ),
        kinds=TaskKinds(field=section.kind_field, weights=section.kind_weights, block_size=section.kind_block_size),
        label=label,
    )
