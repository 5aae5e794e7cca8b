"""Describe in plain lines what a recipe was made from."""

from __future__ import annotations

from collections.abc import Iterator

from sparring.traces.writing import Written

MOST_UNREAD = 5
"""The number of unreadable rows that are printed."""
LONGEST_REPEATED = 8
"""The words up to which `reward.py` and `scorer.py` of the template require the same text."""


def describe(made: Written) -> Iterator[str]:
    """Yield the lines that `sparring init --from-traces` prints."""
    formats = made.traces.formats
    rows = ", ".join(name if len(formats) == 1 else f"{count} of {name}" for name, count in formats.items())
    num = len(made.traces.conversations) + sum(made.traces.left_out.values())
    yield f"read {num} conversations (format: {rows})"
    if unread := made.traces.unread:
        yield f"warning: {len(unread)} rows cannot be read and are left out"
        yield from (f"  {reason}" for reason in unread[:MOST_UNREAD])
        if len(unread) > MOST_UNREAD:
            yield f"  and {len(unread) - MOST_UNREAD} more; traces.json lists them"
    for reason, count in made.left_out.items():
        yield f"left out {count}: {reason}"
    yield from _tasks(made)
    yield from _tools(made)
    yield from _replay(made)
    marked = "by a mark" if made.selection.has_marks else "because none is marked, so every complete one counts as good"
    if likely := made.traces.likely_marks:
        fields = ", ".join(f"{name} ({count} rows)" for name, count in likely.items())
        yield (
            f"no conversation is marked as good or bad. Fields that may be marks: {fields}. To use one, name it with "
            "--good-field, and for numbers the least good one with --good-at-least"
        )
    marks = {one.is_good for one in made.traces.conversations} - {None}
    if marks == {True}:
        yield (
            "warning: every mark counts as good. Name the least number that is good with --good-at-least, if the marks are "
            "numbers"
        )
    by_scorer = f", and {made.num_by_scorer} by the scorer" if made.num_by_scorer else ""
    num_marked = made.num_demonstrations - made.num_by_scorer
    yield f"warm start: {made.num_demonstrations} conversations of training tasks; {num_marked} are good {marked}{by_scorer}"
    if made.num_too_long:
        yield f"left out of the warm start {made.num_too_long}: longer than the model's positions (estimated from characters)"
    yield (
        "reward.py and scorer.py imitate the log: an episode is right if its answers have the values of the logged good "
        "answers and it makes the same changes. Replace both with your own measure, the scorer first"
    )
    yield from _personal_data(made)


def _tasks(made: Written) -> Iterator[str]:
    splits = ", ".join(f"{len(members)} {name}" for name, members in made.selection.splits.items())
    shared = len(made.selection.shared_entities)
    apart = (
        f"{shared} values of arguments are in several splits" if shared else "no argument of a call is in two splits"
    )
    closed = made.selection.closed_arguments
    few = f", except for {', '.join(closed)}: few values, or not named with --split-by" if closed else ""
    yield f"tasks: {splits}; {apart}{few}"
    empty = [name for name, members in made.selection.splits.items() if not members]
    if empty:
        yield (
            f"warning: no task is left for {' and '.join(empty)}, because too many tasks share a value. `sparring control` needs "
            "validation tasks, and `sparring eval` held-out tasks. Name the argument that identifies what a task is about with "
            "--split-by"
        )
    if made.selection.num_contradicted:
        yield (
            f"{made.selection.num_contradicted} tasks have good conversations with different answers; the first counts as right"
        )
    answers = [text for task in made.selection.tasks for text in task.example.answers]
    num_long = sum(len(text.split()) > LONGEST_REPEATED for text in answers)
    if num_long:
        yield (
            f"{num_long} of {len(answers)} logged answers have more than {LONGEST_REPEATED} words, of which only numbers and "
            "identifiers are compared. Wrong answers can have the same ones, and `sparring check` reports that as an error of "
            "the scorer: replace it, or accept it in checks.accept"
        )
    replies = sum(bool(task.example.replies) for task in made.selection.tasks)
    if replies:
        yield (
            f"{replies} tasks have later messages of the user, which are sent in the logged order whatever the policy answers"
        )


def _tools(made: Written) -> Iterator[str]:
    for tool in made.tools.values():
        source = "inferred from its calls" if tool.is_inferred else "schema from the log"
        kind = "looks as if it writes" if tool.writes else "only reads"
        yield f"tool {tool.name}: {tool.num_calls} calls, {source}; {kind}, because {tool.why}"
    writing = [tool.name for tool in made.tools.values() if tool.writes]
    if writing:
        yield (
            f"without a back end: {', '.join(writing)}. Calls succeed only if the task's log has them, until environment.py has "
            "a method with the tool's name. --reads TOOL and --writes TOOL decide otherwise"
        )


def _replay(made: Written) -> Iterator[str]:
    replay = made.replay
    if replay.share is None:
        yield "the conversations have no calls of tools"
        return
    yield (
        f"replay answers {replay.num_shared + replay.num_own} of {replay.num_calls} logged calls ({replay.share:.0%}): "
        f"{replay.num_shared} in every task, {replay.num_own} only in their own task; {replay.num_writes} are calls of tools "
        "that write"
    )


def _personal_data(made: Written) -> Iterator[str]:
    found = ", ".join(f"{count} conversations contain {kind}" for kind, count in made.personal_data.items())
    yield (
        f"warning: personal data: {found or 'no e-mail address, phone number, card or account number was found'}. The recipe "
        "contains the conversations as they are, with names and addresses, which are not searched for. Mask the log first if "
        "you may not store or train on them"
    )
