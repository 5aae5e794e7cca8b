"""Rules that need the model: weights and baseline, each on a sound model and on one with the defect planted."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparring.assembly import TrainingParts, load_training_parts
from sparring.checks.evidence.model_episodes import BaselineRun, run_model_baseline
from sparring.checks.evidence.subject import Subject
from sparring.checks.rules import baseline, weights
from sparring.config import load_config
from sparring.evaluation.evaluation import Row, SuccessCriterion, summarize
from sparring.findings import Finding, Severity
from sparring.ledger import Ledger
from sparring.types import Outcome, Reward, Task, Trajectory, TrajectoryGroup, Weights

RECIPE = Path(__file__).parents[2] / "recipes" / "pointer_chase" / "recipe.toml"
SMALL = ["batch.group_size=2", "sampling.sampling_max_tokens=4", "environment.max_turns=2", "engine.max_running=8"]


@pytest.fixture(scope="module")
def parts() -> TrainingParts:
    return load_training_parts(load_config(RECIPE, SMALL), RECIPE.parent, Ledger())


def subject_with(parts: TrainingParts, **planted: Any) -> Subject:
    return Subject(parts.config, RECIPE, parts=replace(parts, **planted) if planted else parts)


def findings(rule: Any, subject: Subject) -> list[Finding]:
    return list(asyncio.run(rule(subject)))


def test_a_sound_model_is_not_accused(parts: TrainingParts) -> None:
    subject = subject_with(parts)
    before = parts.engine.fingerprint
    for rule in (weights.logprobs, weights.served, weights.export):
        assert findings(rule, subject) == []
    assert parts.engine.fingerprint == before == parts.learner.export_weights().fingerprint


def test_a_learner_with_other_weights_than_the_engine_is_found(parts: TrainingParts) -> None:
    mine = parts.learner.export_weights()
    parts.learner.load_weights(Weights(tensors={n: t + 0.1 for n, t in mine.tensors.items()}, fingerprint="other"))
    try:
        found = findings(weights.logprobs, subject_with(parts))
    finally:
        parts.learner.load_weights(mine)
    assert [one.severity for one in found] == [Severity.ERROR]
    assert "nats per token" in found[0].symptom


def test_an_engine_that_goes_on_with_the_old_weights_is_found(parts: TrainingParts) -> None:
    class Deaf:
        """An engine that reports new weights and still samples with the first ones."""

        def __init__(self, engine: Any) -> None:
            self._engine, self.fingerprint = engine, engine.fingerprint

        async def load_weights(self, given: Weights, version: int) -> None:
            self.fingerprint = given.fingerprint

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

    found = findings(weights.served, subject_with(parts, engine=Deaf(parts.engine)))
    assert [one.symptom for one in found] == [
        "the engine received other weights, but it still returns the log-probabilities of the old weights."
    ]


def test_weights_that_cannot_be_written_are_found(parts: TrainingParts) -> None:
    class Unwritable:
        trained = parts.policy.trained
        module = SimpleNamespace()
        tokenizer = parts.policy.tokenizer

    found = findings(weights.export, subject_with(parts, policy=Unwritable()))
    assert "cannot be exported" in found[0].symptom


def test_a_baseline_is_played_once_and_its_limits_are_counted(parts: TrainingParts) -> None:
    subject = subject_with(parts)

    async def twice() -> tuple[BaselineRun, BaselineRun]:
        return await run_model_baseline(subject), await run_model_baseline(subject)

    first, second = asyncio.run(twice())
    assert first is second
    assert first.num_episodes == 100
    # A model that was never trained writes anything, up to the cap; demonstrations teach it where to end.
    capped = [one for one in findings(baseline.limits, subject) if "turns end at sampling_max_tokens" in one.symptom]
    assert [one.severity for one in capped] == [Severity.NOTE]
    cold = Subject(parts.config.model_copy(update={"warm_start": None}), RECIPE, parts=parts)
    cold.shared.update(subject.shared)
    assert {one.severity for one in findings(baseline.limits, cold)} == {Severity.WARNING}


def played(scores: list[float]) -> BaselineRun:
    task = Task(id="t", messages=({"role": "user", "content": "?"},))
    trajectories = tuple(
        Trajectory(
            id=str(index),
            task=task,
            attempt=index,
            turns=(),
            messages=({"role": "assistant", "content": ""},),
            outcome=Outcome.FINISHED,
            reward=Reward(total=score),
            score=score,
        )
        for index, score in enumerate(scores)
    )
    group = TrajectoryGroup(task=task, trajectories=trajectories)
    row = Row(
        name="m",
        label="m",
        split="validation",
        policy_version=None,
        fingerprint="f",
        temperature=1.0,
        group_size=len(scores),
    )
    criterion = SuccessCriterion(scorer="s:score", independence="scorer", success_threshold=1.0)
    evaluation = summarize([group], row, criterion=criterion, seconds=1.0, prefix="check")
    return BaselineRun(evaluation=evaluation, trajectories=trajectories)


def test_no_success_is_an_error_without_a_warm_start_and_a_note_with_one() -> None:
    cold = load_config(RECIPE).model_copy(update={"warm_start": None})
    for config, severity in ((cold, Severity.ERROR), (load_config(RECIPE), Severity.NOTE)):
        (found,) = baseline.find_success(played([0.0, 0.0, 0.5]), SimpleNamespace(config=config))  # type: ignore[arg-type]
        assert found.severity is severity
        assert found.evidence["success"][0] == 0.0
        # A recipe with a warm start is not advised to add one.
        assert ("add a [warm_start]" in found.change) is (severity is Severity.ERROR)
    (found,) = baseline.find_success(played([1.0, 0.0]), SimpleNamespace(config=cold))  # type: ignore[arg-type]
    assert (found.severity, found.evidence["success"][0]) == (Severity.NOTE, 0.5)
    (found,) = baseline.find_success(played([1.0, 1.0]), SimpleNamespace(config=cold))  # type: ignore[arg-type]
    assert found.severity is Severity.WARNING


def test_log_probabilities_that_rounding_explains_are_not_accused() -> None:
    assert weights.logprobs_apart([-1.0, -2.0], [-1.01, -1.99]) == []
    assert weights.logprobs_apart([-1.0, -2.0], [-1.2, -2.2])[0].evidence["mean_difference"] == pytest.approx(0.2)
    assert weights.logprobs_apart([-1.0], [-1.0, -2.0])


def test_a_baseline_whose_requests_were_refused_is_warned_of() -> None:
    clean = played([0.0, 1.0])
    (group,) = (
        TrajectoryGroup(task=clean.trajectories[0].task, trajectories=clean.trajectories, refused={"invalid_json": 3}),
    )
    row = Row(
        name="m",
        label="m",
        split="validation",
        policy_version=None,
        fingerprint="f",
        temperature=1.0,
        group_size=2,
    )
    criterion = SuccessCriterion(scorer="s:score", independence="scorer", success_threshold=1.0)
    refused = replace(clean, evaluation=summarize([group], row, criterion=criterion, seconds=1.0, prefix="check"))
    for measured, num_found in ((clean, 0), (refused, 1)):
        subject: Any = SimpleNamespace(shared={"baseline": measured})
        found = list(asyncio.run(baseline.refusals(subject)))
        assert [(one.severity, one.evidence["reasons"]) for one in found] == [
            (Severity.WARNING, {"invalid_json": 3.0})
        ] * num_found
