"""The rule on overlap: no evaluated task is also a training task."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sparring.checks.evidence.answer_forms import canonical
from sparring.checks.evidence.legal_calls import make_policies
from sparring.checks.evidence.placed_tasks import (
    EVALUATED,
    ROW_COLUMNS,
    Placed,
    differ_by_seed,
    get_prompt_text,
    get_seed,
    identify,
    place_tasks,
)
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.similarity import find_near_pairs, normalize_text
from sparring.checks.evidence.subject import Subject, write_transcript
from sparring.findings import Finding, Severity
from sparring.types import Task

NUM_SHOWN = 5
MUCH_CONTAMINATION = 0.05
"""A split is useless if at least this share of its tasks are near copies of training tasks."""
IDENTIFIES = 0.9
"""The prompt alone identifies a task if at least this share of the training tasks have different prompts. Otherwise,
the prompt and the fields identify it."""
NUM_SEEDS = 4
"""The number of seeds with which the same actions are run, to see whether a seed changes anything."""


async def contamination(subject: Subject) -> Iterable[Finding]:
    """No task of the validation or held-out split is also a training task, either exactly or nearly word for word.

    The rule compares prompts by their distinctive words, ignoring case, punctuation and filler words. Tasks from one
    template about different items are therefore treated as different. The same applies to equal questions about
    different data with different answers. Tasks that differ only in their seed, as in a game, are compared by their
    seeds. The rule warns if the same actions give the same conversation for several of these seeds, because these tasks
    are then one task. Split the data by the entity that must not be known from training (customer, item, document), not
    by row.
    """
    everything = place_tasks(subject)
    train = [one for one in everything if one.split == "train"]
    sizes = Counter(one.split for one in everything)
    if differ_by_seed(subject):
        return [
            *_contaminated(_same_seeds(everything), sizes, "the same as"),
            *await _find_equal_episodes(subject, sizes),
        ]
    by_prompt = len({normalize_text(get_prompt_text(one.task)) for one in train}) >= IDENTIFIES * len(train)
    known = {identify(one.task, by_prompt): one for one in reversed(train)}
    references = await find_references(subject)
    graded = set() if references is None else {path[0] for path in references.read}
    exact: dict[str, list[tuple[Placed, Placed]]] = defaultdict(list)
    left = []
    for one in (one for one in everything if one.split != "train"):
        original = known.get(identify(one.task, by_prompt))
        if original is not None and _has_same_answer(original.task, one.task, graded):
            exact[one.split].append((original, one))
        else:
            left.append(one)
    near = _find_near_tasks([*train, *left], graded, by_prompt=by_prompt)
    return [*_contaminated(exact, sizes, "the same as"), *_contaminated(near, sizes, "nearly the same as")]


def _find_near_tasks(
    compared: Sequence[Placed], graded: set[str], *, by_prompt: bool
) -> dict[str, list[tuple[Placed, Placed]]]:
    """Return training tasks and nearly equal tasks of the other splits, keyed by split. The tasks of a pair have the
    same answer if the prompt identifies a task, and otherwise the same fields."""
    near: dict[str, list[tuple[Placed, Placed]]] = defaultdict(list)
    for pair in find_near_pairs(
        [get_prompt_text(one.task) for one in compared], [one.split == "train" for one in compared]
    ):
        original, one = compared[pair.left], compared[pair.right]
        names = graded if by_prompt else {name for name in original.task.fields if not ROW_COLUMNS.match(name)}
        if get_seed(original.task) == get_seed(one.task) and _has_same_answer(original.task, one.task, names):
            near[one.split].append((original, one))
    return near


def _has_same_answer(one: Task, other: Task, graded: Iterable[str]) -> bool:
    """Return True if grading requires the same answer in both tasks. The same question about different data is a
    different task."""
    return all(canonical(one.fields.get(name)) == canonical(other.fields.get(name)) for name in graded)


def _contaminated(
    pairs: Mapping[str, Sequence[tuple[Placed, Placed]]], sizes: Mapping[str, int], how: str
) -> Iterator[Finding]:
    for split, found in pairs.items():
        is_exact = how == "the same as"
        is_much = len(found) >= max(2, MUCH_CONTAMINATION * sizes[split])
        yield Finding(
            rule="data.contamination",
            severity=Severity.ERROR if is_exact or is_much else Severity.WARNING,
            symptom=f"{len(found)} of the {sizes[split]} tasks of {split} are {how} training tasks "
            f"(row {found[0][1].row} is {how} row {found[0][0].row} of train).",
            evidence={
                "split": split,
                "tasks": len(found),
                "of": sizes[split],
                "pairs": [{"train": original.shown, split: one.shown} for original, one in found[:NUM_SHOWN]],
            },
            change="Remove these tasks from one of the splits. Split by the entity that a task is about, before you "
            "build the tasks.",
            confirm="Run the check again: the finding is gone.",
        )


def _same_seeds(everything: Sequence[Placed]) -> dict[str, list[tuple[Placed, Placed]]]:
    """Return, for each split, the pairs of a training task and a task of that split with the same seed."""
    known = {one.task.seed: one for one in everything if one.split == "train"}
    found: dict[str, list[tuple[Placed, Placed]]] = defaultdict(list)
    for one in everything:
        if one.split != "train" and one.task.seed in known:
            found[one.split].append((known[one.task.seed], one))
    return found


async def _find_equal_episodes(subject: Subject, sizes: Mapping[str, int]) -> list[Finding]:
    """Return findings on seeds that change nothing although they should distinguish tasks."""
    first, *others = subject.sample[:NUM_SEEDS]
    evaluated = {split: sizes[split] for split in EVALUATED if sizes[split]}
    if not others or not evaluated:
        return []
    for policy in await make_policies(subject, first):
        played = [await subject.run_new_episode(task, policy) for task in (first, *others)]
        if len({tuple(write_transcript(one.messages)) for one in played}) > 1:
            return []
    return [
        Finding(
            rule="data.contamination",
            severity=Severity.WARNING,
            symptom="The tasks differ only by their seeds, and the same actions give the same conversation with "
            f"{len(others) + 1} of them: evaluation and training use the same task.",
            evidence={"seeds": [task.seed for task in (first, *others)], "tasks": evaluated},
            change="Let the environment derive the differences between tasks from the seed, or give each task "
            "different fields (for a GymnasiumEnvironment, use `arguments_of`). If there is only this task, read its "
            "score as memorization.",
            confirm="The same actions give different conversations on different tasks.",
        )
    ]
