"""Rule on the changes that an adapter makes to a foreign environment, so that nothing is repaired silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sparring.checks.evidence.legal_calls import make_policies
from sparring.checks.evidence.subject import Subject
from sparring.environments.base import REPAIRS
from sparring.findings import Finding, Severity

CONFIRM = "The finding is gone, or names only what you accept."


async def repairs(subject: Subject) -> Iterable[Finding]:
    """The rule lists the changes that the adapter makes to the results and tasks of a foreign environment so that it
    can run.

    If JSON cannot represent a result (NaN, a set, an image), the policy reads it in a different form than the
    environment returned. An environment whose results need such changes often has other defects as well. Correct the
    results at their source, or accept the change. Repairs that tasks list in their field `repairs` are reported as a
    note.
    """
    made = Counter[str]()
    results = 0
    if subject.environment_class is not None:
        for task in subject.sample:
            for policy in await make_policies(subject, task):
                for step in (await subject.run_episode(task, policy, graded=False)).transitions:
                    results += 1
                    made.update({f"{step['tool']}: {what}" for what in step.get(REPAIRS, ())})
    found = []
    if made:
        found.append(_report_results(made, results))
    listed = Counter(str(what) for task in subject.looked_at for what in task.fields.get(REPAIRS, ()))
    if listed:
        found.append(_report_tasks(listed, len(subject.looked_at)))
    return found


def _report_results(made: Counter[str], num_results: int) -> Finding:
    (first, times), *_ = made.most_common()
    return Finding(
        rule="environment.repairs",
        severity=Severity.WARNING,
        symptom=f"The adapter changes results in {len(made)} ways. The most frequent change, in {times} of "
        f"{num_results} results: {first}.",
        evidence={"results": num_results, "repairs": dict(made.most_common())},
        change="Correct these results in the environment itself, or accept what the policy reads instead.",
        confirm=CONFIRM,
    )


def _report_tasks(listed: Mapping[str, int], num_tasks: int) -> Finding:
    return Finding(
        rule="environment.repairs",
        severity=Severity.NOTE,
        symptom=f"The tasks are changed in {len(listed)} ways: {next(iter(listed))}",
        evidence={"tasks": num_tasks, "repairs": dict(listed)},
        change="Change nothing if you accept the changes.",
        confirm=CONFIRM,
    )
