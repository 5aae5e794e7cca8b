"""The joint results of runs that differ only in their seed: for each policy, compared with controls, and as one
claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from sparring.errors import DataError, UsageError
from sparring.evaluation.claim import Claim
from sparring.evaluation.claim_over_seeds import claim_over
from sparring.evaluation.comparison import Comparison
from sparring.evaluation.controls import BASE, CONTINUED, ORIGIN, WARM_START, listed
from sparring.evaluation.evaluation import Evaluation, interval_json
from sparring.evaluation.of_run import Evaluated, claim_of_run, evaluated, named
from sparring.evaluation.policies import run_path
from sparring.evaluation.seed_intervals import (
    Outlier,
    interval_over_seeds,
    interval_over_seeds_and_tasks,
    outlier_of,
    shared_tasks,
)
from sparring.evaluation.statistics import Interval
from sparring.run_folders import RunFolder
from sparring.run_folders.family_folder import FamilyFolder, Origin, join_names

TUNED = "tuned"
MOST_LETTERS = 120
"""The maximum number of characters in a table for the reason why a seed has no result. The run's status has the full
text."""
ORDER = (BASE, ORIGIN, WARM_START, CONTINUED)
"""The order of policies in a table. Other policies follow, and tuned is last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """One seed's run and its results."""

    seed: int
    run: RunFolder | None
    """The seed's run, or None if it was not started."""
    status: str
    """The status from `status.json`, or `not begun` without a run."""
    step: int = 0
    reason: str = ""
    claim: Claim | None = None
    """The claim of the run, or None if the run is not completed."""

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """The evaluations at the temperature of the claim, keyed by policy name."""
        if self.claim is None or self.claim.tuned is None:
            return {}
        controls = {one.control: one.before for one in self.claim.against if one.before is not None}
        return {**controls, TUNED: self.claim.tuned}

    @property
    def differences(self) -> dict[str, Comparison]:
        """The paired difference between the tuned policy and each control, keyed by control."""
        against = () if self.claim is None else self.claim.against
        return {one.control: one.comparison for one in against if one.comparison is not None}

    @property
    def missing(self) -> str:
        """A short reason why this seed has no result."""
        reason = self.reason if len(self.reason) <= MOST_LETTERS else f"{self.reason[:MOST_LETTERS]}..."
        return f"{self.status}: {reason}" if reason else self.status

    def as_json(self) -> dict[str, Any]:
        """Return the content as JSON data."""
        return {
            "seed": self.seed,
            "run": None if self.run is None else str(self.run.path),
            "status": self.status,
            "step": self.step,
            "reason": self.reason or None,
            "success": {name: interval_json(one.success) for name, one in self.evaluations.items()},
            "differences": {name: interval_json(one.difference) for name, one in self.differences.items()},
            "claim": None if self.claim is None else self.claim.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSeeds:
    """The mean of one quantity over seeds, with intervals. The quantity is a policy's success rate, or its gain over a
    control."""

    mean: float
    seeds: Interval | None
    """The interval for other seeds on these tasks. None for a single seed."""
    seeds_and_tasks: Interval | None
    """The interval for other seeds on other tasks. None for a single seed."""

    @classmethod
    def of(cls, by_seed: Sequence[Mapping[str, float]], *, least: float = 0.0) -> OverSeeds:
        """Compute the mean and its intervals from one value per task for each seed.

        `by_seed` contains one mapping from task ids to values for each seed. `least` is the smallest possible value.
        """
        means = [fmean(one.values()) for one in by_seed]
        return cls(
            mean=fmean(means),
            seeds=interval_over_seeds(means, least=least),
            seeds_and_tasks=interval_over_seeds_and_tasks(by_seed, least=least),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the content as JSON data."""
        both = {"over_seeds": self.seeds, "over_seeds_and_tasks": self.seeds_and_tasks}
        return {"mean": self.mean, **{name: one and interval_json(one) for name, one in both.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossSeeds:
    """The results of a family of runs, one per seed."""

    name: str
    seeds: tuple[SeedRun, ...]
    is_held_out: bool
    """Whether the results are held-out evaluations. Otherwise they are the validation results from training."""
    policies: Mapping[str, OverSeeds]
    """The results of the policies that are evaluated for every seed with a result."""
    gains: Mapping[str, OverSeeds]
    """The tuned policy's gain over each control, the strongest control first."""
    outlier: Outlier | None
    claim: Claim
    notes: tuple[str, ...] = ()

    @property
    def finished(self) -> tuple[SeedRun, ...]:
        """The seeds that have a result."""
        return tuple(one for one in self.seeds if one.claim is not None)

    @property
    def setting(self) -> str:
        """A description of the tasks and of how episodes were sampled."""
        tuned = next((one.evaluations[TUNED] for one in self.finished if one.evaluations), None)
        split = "held-out tasks" if self.is_held_out else "validation tasks"
        return split if tuned is None else f"{split}, {tuned.setting}"

    def as_json(self) -> dict[str, Any]:
        """Return the content as JSON data."""
        return {
            "family": self.name,
            "seeds": [one.as_json() for one in self.seeds],
            "split": "held_out" if self.is_held_out else "validation",
            "policies": {name: one.as_json() for name, one in self.policies.items()},
            "gains": {name: one.as_json() for name, one in self.gains.items()},
            "outlier": None if self.outlier is None else self.outlier.seed,
            "notes": list(self.notes),
            "claim": self.claim.as_json(),
        }


def runs_of(sources: Sequence[str]) -> tuple[str, dict[int, RunFolder | None]]:
    """Find the runs of one family, or check that several runs differ only in their seed.

    Returns the name that a command accepts, and the runs keyed by seed. Raises UsageError if the runs do not belong
    together, and DataError if a source is neither a family nor a run.
    """
    paths = [run_path(source) for source in dict.fromkeys(sources)]
    families = [path for path in paths if FamilyFolder.is_family(path)]
    if families and len(paths) > 1:
        raise UsageError(f"{families[0]} is already a family of runs; name only that family, or only runs.")
    if families:
        family = FamilyFolder(families[0])
        runs = {
            seed: RunFolder(run_path(path)) if RunFolder.is_run(path) else None for seed, path in family.runs.items()
        }
        return named(family.path), runs
    given = [RunFolder(path) for path in paths]
    if len(given) < 2:
        raise UsageError(
            f"{sources[0]} is only one run, so it has only one seed; name at least two runs that differ in their seed, "
            "or a family that `sparring train RECIPE --seeds 3` created."
        )
    found: dict[int, RunFolder | None] = {}
    for run in given:
        seed, first = run.config().run.seed, given[0]
        if different := Origin.of_run(first).differences(Origin.of_run(run)):
            raise UsageError(
                f"{first.path} and {run.path} differ in more than their seed: {join_names(different)}. Name runs of "
                "one recipe; to compare other runs, use `sparring eval --compare`."
            )
        if (other := found.setdefault(seed, run)) is not None and other is not run:
            raise UsageError(f"{other.path} and {run.path} both have seed {seed}; specify only one of them.")
    return " ".join(named(run.path) for run in given), dict(sorted(found.items()))


def across_seeds(name: str, runs: Mapping[int, RunFolder | None]) -> AcrossSeeds:
    """Read the results of the runs from their files.

    A run that did not complete has no result, and the claim states this. If every completed run has a held-out
    evaluation, these are used; otherwise the validation results of all runs are used.
    """
    stands = {seed: _stands(seed, run) for seed, run in runs.items()}
    found = _evaluated(stands)
    without = [seed for seed, one in found.items() if one.held_out is None]
    is_held_out = bool(found) and not without
    seeds = [
        one if seed not in found else replace(one, claim=_claim(one, found[seed], name, is_held_out=is_held_out))
        for seed, one in stands.items()
    ]
    finished = {one.seed: one for one in seeds if one.claim is not None}
    results = [one for one in finished.values() if one.evaluations]
    policies, gains = dict(_policies(results)), dict(_gains(results))
    claim = claim_over(
        {seed: one.claim for seed, one in finished.items() if one.claim is not None},
        without={one.seed: one.missing for one in seeds if one.claim is None},
    )
    return AcrossSeeds(
        name=name,
        seeds=tuple(seeds),
        is_held_out=is_held_out,
        policies=policies,
        gains={one.control: gains[one.control] for one in claim.against if one.control in gains},
        outlier=outlier_of({one.seed: _rates(one.evaluations[TUNED]) for one in results}),
        claim=claim,
        notes=(*_about_validation(name, without, len(found)), *_about_tasks(results)),
    )


def _about_validation(name: str, without: Sequence[int], num_completed: int) -> Iterator[str]:
    """Yield the note that the numbers are validation results, because seeds lack a held-out evaluation."""
    if without and len(without) < num_completed:
        lacking = listed([str(seed) for seed in without])
        yield f"Seeds without a held-out evaluation: {lacking}. The numbers are therefore validation results. {_plays(name)}"
    elif without:
        yield f"The numbers are validation results. {_plays(name)}"


def _about_tasks(results: Sequence[SeedRun]) -> Iterator[str]:
    """Yield the note that the seeds have no tasks in common."""
    if len(results) > 1 and not shared_tasks([_rates(one.evaluations[TUNED]) for one in results]):
        yield "Each seed was evaluated on tasks of its own, so the interval over seeds also covers the choice of tasks."


def outlier_sentence(family: AcrossSeeds) -> str:
    """Return a sentence that identifies the outlying seed and where to look, or states that there is no such seed. The
    sentence is empty if too few seeds have a result."""
    if family.outlier is None:
        return "No seed is an outlier." if len(family.finished) > 2 else ""
    run = next(one.run for one in family.seeds if one.seed == family.outlier.seed)
    look = "" if run is None else f" `sparring diagnose {named(run.path)}` searches for the cause."
    return f"{family.outlier.sentence} (success of tuned, {family.setting}).{look}"


def _plays(name: str) -> str:
    return f"`sparring eval --across {name}` runs the held-out evaluation."


def _stands(seed: int, run: RunFolder | None) -> SeedRun:
    if run is None:
        return SeedRun(seed=seed, run=None, status="not begun")
    status = run.status()
    return SeedRun(
        seed=seed,
        run=run,
        status=str(status.get("status", "unknown")),
        step=int(status.get("step") or 0),
        reason=str(status.get("reason") or ""),
    )


def _evaluated(stands: Mapping[int, SeedRun]) -> dict[int, Evaluated]:
    """Return the evaluations of the completed runs."""
    runs = {seed: one.run for seed, one in stands.items() if one.status == "completed"}
    return {seed: evaluated(run) for seed, run in runs.items() if run is not None}


def _claim(one: SeedRun, found: Evaluated, name: str, *, is_held_out: bool) -> Claim:
    assert one.run is not None
    if not found.held_out and not found.validations:
        raise DataError(
            f"{one.run.path} has no evaluation and no validation result; evaluate it with `sparring eval "
            f"{one.run.path}`."
        )
    return claim_of_run(one.run, found if is_held_out else replace(found, held_out=None, earlier=()), family=name)


def _rates(one: Evaluation) -> dict[str, float]:
    return dict(zip(one.task_ids, map(float, one.rates), strict=True))


def _policies(results: Sequence[SeedRun]) -> Iterator[tuple[str, OverSeeds]]:
    names = dict.fromkeys(name for one in results for name in one.evaluations)
    places = {name: place for place, name in enumerate(ORDER)}
    for name in sorted(names, key=lambda name: (name == TUNED, places.get(name, len(places)))):
        if all(name in one.evaluations for one in results):
            yield name, OverSeeds.of([_rates(one.evaluations[name]) for one in results])


def _gains(results: Sequence[SeedRun]) -> Iterator[tuple[str, OverSeeds]]:
    for control in dict.fromkeys(name for one in results for name in one.differences):
        if all(control in one.differences for one in results):
            yield control, OverSeeds.of([_gain(one, control) for one in results], least=-1.0)


def _gain(one: SeedRun, control: str) -> dict[str, float]:
    """Return the difference in success rate for each task that both policies ran."""
    before, after = (_rates(one.evaluations[name]) for name in (control, TUNED))
    return {task: after[task] - before[task] for task in before if task in after}
