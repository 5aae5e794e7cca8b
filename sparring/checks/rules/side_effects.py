"""Rules on environments that read the clock, draw unseeded random numbers, or use the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sparring.checks.evidence.legal_calls import make_policies
from sparring.checks.evidence.observed_effects import Observed, SideEffect, SideEffects
from sparring.checks.evidence.subject import Subject
from sparring.findings import Finding, Severity

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."


async def clock(subject: Subject) -> Iterable[Finding]:
    """The environment does not read the clock.

    An episode that is replayed, resumed or evaluated later would read a different time. Put the time into the task, or
    use the clock of a `StatefulEnvironment`, which starts at a time derived from the seed. The rule ignores timers that
    only measure durations.
    """
    return _seen(
        "environment.clock",
        (await _observe(subject)).of("clock"),
        Severity.WARNING,
        "the environment reads the wall clock at {}.",
        "Take the time from the task, or from the clock of a StatefulEnvironment.",
    )


async def randomness(subject: Subject) -> Iterable[Finding]:
    """The environment draws random numbers only from its own seeded generators.

    The process-wide generators of `random` and `numpy.random`, unseeded generators, `uuid4`, `secrets` and `os.urandom`
    give every episode a different environment. Use `random.Random(task.seed)`, or `state.rng` and `state.new_id` of a
    `StatefulEnvironment`.
    """
    return _seen(
        "environment.randomness",
        (await _observe(subject)).of("randomness"),
        Severity.WARNING,
        "the environment draws from an unseeded or process-wide source at {}.",
        "Draw from random.Random(task.seed), created in `reset`.",
    )


async def network(subject: Subject) -> Iterable[Finding]:
    """No tool uses the network.

    A step runs hundreds of episodes. Each episode would send requests to live systems, whose data changes during
    training. Record the results once and replay them (`Fixtures.record`), or run your own service on this machine, for
    which the rule only warns.
    """
    effects = (await _observe(subject)).of("network")
    outside = [one for one in effects if not any(name in one.what for name in ("127.0.0.1", "localhost", "::1", "/"))]
    change = "Record the answers once (Fixtures.record) and replay them."
    symptom = "the environment uses the network at {}."
    if outside:
        return _seen("environment.network", outside, Severity.ERROR, symptom, change)
    return _seen("environment.network", effects, Severity.WARNING, symptom, change)


async def _observe(subject: Subject) -> SideEffects:
    """Return the side effects of the sampled tasks. The tasks run once for all rules that use them."""
    if "side_effects" not in subject.shared:
        with Observed(subject) as effects, subject.timing.as_far_as_it_goes():
            for task in subject.sample:
                for policy in await make_policies(subject, task):
                    await subject.run_new_episode(task, policy)
        subject.shared["side_effects"] = effects
    return subject.shared["side_effects"]


def _seen(rule: str, effects: Sequence[SideEffect], severity: Severity, symptom: str, change: str) -> list[Finding]:
    if not effects:
        return []
    return [
        Finding(
            rule=rule,
            severity=severity,
            symptom=symptom.format(f"{Path(effects[0].place).name} ({effects[0].what})"),
            evidence={"seen": [one.as_json() for one in effects[:12]]},
            change=change,
            confirm=AGAIN,
        )
    ]
