"""Does the environment read the clock, draw unseeded random numbers, or reach for the network?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sparring.checks.calls import players
from sparring.checks.registry import check
from sparring.checks.sightings import Observed, Sighting, Sightings
from sparring.checks.subject import Subject
from sparring.findings import Finding, Severity

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."


@check("environment.clock", needs=("environment",))
async def clock(subject: Subject) -> Iterable[Finding]:
    """The environment does not ask what time it is.

    An episode that is replayed, resumed or evaluated later meets another time. Put the time into the task, or use the clock
    of a `StatefulEnvironment`, which starts at a time that follows from the seed. Timers that only measure are fine.
    """
    return _seen(
        "environment.clock", (await _sightings(subject)).of("clock"), Severity.WARNING,
        "the environment reads the wall clock at {}.",
        "Take the time from the task, or from the clock of a StatefulEnvironment.",
    )  # fmt: skip


@check("environment.randomness", needs=("environment",))
async def randomness(subject: Subject) -> Iterable[Finding]:
    """The environment throws no dice but its own seeded ones.

    The process-wide generators of `random` and `numpy.random`, unseeded ones, `uuid4`, `secrets` and `os.urandom` give every
    episode another world. Use `random.Random(task.seed)`, or `state.rng` and `state.new_id` of a `StatefulEnvironment`.
    """
    return _seen(
        "environment.randomness", (await _sightings(subject)).of("randomness"), Severity.WARNING,
        "the environment draws from an unseeded or process-wide source at {}.",
        "Draw from random.Random(task.seed), made in `reset`.",
    )  # fmt: skip


@check("environment.network", needs=("environment",))
async def network(subject: Subject) -> Iterable[Finding]:
    """No tool reaches for the network.

    A step plays hundreds of episodes: live systems would be hit by each, and their data changes under the training. Record
    the answers once and replay them (`Fixtures.record`), or run a service of your own on this machine, which is a warning only.
    """
    sightings = (await _sightings(subject)).of("network")
    outside = [one for one in sightings if not any(name in one.what for name in ("127.0.0.1", "localhost", "::1", "/"))]
    change = "Record the answers once (Fixtures.record) and replay them."
    symptom = "the environment reaches for the network at {}."
    if outside:
        return _seen("environment.network", outside, Severity.ERROR, symptom, change)
    return _seen("environment.network", sightings, Severity.WARNING, symptom, change)


async def _sightings(subject: Subject) -> Sightings:
    """What was seen while the sampled tasks were played; played once for all rules that ask."""
    if "sightings" not in subject.shared:
        with Observed(subject) as sightings, subject.timing.as_far_as_it_goes():
            for task in subject.sample:
                for policy in await players(subject, task):
                    await subject.episode(task, policy)
        subject.shared["sightings"] = sightings
    return subject.shared["sightings"]


def _seen(rule: str, sightings: Sequence[Sighting], severity: Severity, symptom: str, change: str) -> list[Finding]:
    if not sightings:
        return []
    return [
        Finding(
            rule=rule,
            severity=severity,
            symptom=symptom.format(f"{Path(sightings[0].place).name} ({sightings[0].what})"),
            evidence={"seen": [one.as_json() for one in sightings[:12]]},
            change=change,
            confirm=AGAIN,
        )
    ]
