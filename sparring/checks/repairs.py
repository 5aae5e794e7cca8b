"""What an adapter changed of the environment that it brings, so that nothing is repaired in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sparring.checks.calls import players
from sparring.checks.registry import check
from sparring.checks.subject import Subject
from sparring.environments.base import REPAIRS
from sparring.findings import Finding, Severity

CONFIRM = "The finding is gone, or names only what you accept."


@check("environment.repairs")
async def repairs(subject: Subject) -> Iterable[Finding]:
    """What was changed of a foreign environment so that it can be played is listed: results and tasks.

    A result that JSON has no form for (NaN, a set, a picture) is read by the policy in another form than the environment gave
    it, and an environment whose results need that is often broken in other ways. Correct it at its source, or accept the
    change. What tasks list in their field `repairs` is a note.
    """
    made = Counter[str]()
    results = 0
    if subject.environment_class is not None:
        for task in subject.sample:
            for policy in await players(subject, task):
                for step in (await subject.play(task, policy, judged=False)).transitions:
                    results += 1
                    made.update({f"{step['tool']}: {what}" for what in step.get(REPAIRS, ())})
    found = []
    if made:
        (first, times), *_ = made.most_common()
        found.append(
            Finding(
                rule="environment.repairs", severity=Severity.WARNING,
                symptom=f"The adapter changes results in {len(made)} ways; most often, in {times} of {results}: {first}.",
                evidence={"results": results, "repairs": dict(made.most_common())},
                change="Correct these results in the environment itself, or accept what the policy reads instead.",
                confirm=CONFIRM,
            )
        )  # fmt: skip
    listed = Counter(str(what) for task in subject.looked_at for what in task.fields.get(REPAIRS, ()))
    if listed:
        found.append(
            Finding(
                rule="environment.repairs", severity=Severity.NOTE,
                symptom=f"The tasks are changed in {len(listed)} ways: {next(iter(listed))}",
                evidence={"tasks": len(subject.looked_at), "repairs": dict(listed)},
                change="Nothing, where you accept it.", confirm=CONFIRM,
            )
        )  # fmt: skip
    return found
