"""On-policy distillation: advantages from a teacher's log-probabilities, and a student that reaches its teacher."""

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean

import pytest

from sparring.algorithms.credit import StepAdvantages
from sparring.algorithms.reductions import token_mean
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ServiceError
from sparring.loop import UpdateRule, learn
from sparring.protocols import Engine
from sparring.runtime import event_loop
from sparring.training.distillation import Teacher, Teachers, compute_advantages, distill
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_batch
from sparring.types import SampleRequest, Sampling, Turn, Weights
from tests.contracts.cases import make_policy, weights_of


def alone(teacher: Teacher) -> Teachers:
    """The same teacher for all tasks."""
    return Teachers(by_kind={"": teacher}, kind_of=lambda task: "")


@contextmanager
def teacher_of(weights: Weights, *, coef: float = 1.0) -> Iterator[Teacher]:
    """A frozen policy with these weights, next to other weights in training."""
    policy = make_policy()
    engine = TorchEngine(policy, policy.snapshot(), max_running=1, kv_cache_tokens=1024)
    try:
        yield Teacher(name="expert", source=engine.freeze(weights), coef=coef)
    finally:
        event_loop.submit(engine.close()).result()


def test_an_advantage_is_the_teachers_log_probability_minus_the_sampled_one(turn, group):
    played = group(
        "t",
        [turn(0, None, [5, 6], [7, 8]), turn(1, 0, [5, 6, 7, 8, 9], [10])],
        [turn(0, None, [5, 6], [11], temperature=0.0)],
    )
    # The scores of the second turn begin with those of the first one and with that of id 9, which was not sampled. The
    # last trajectory is greedy, so it is neither scored nor trained.
    scores = {(1.0, (5, 6, 7, 8)): [-0.5, -3.0], (1.0, (5, 6, 7, 8, 9, 10)): [-0.5, -3.0, -9.0, -1.5]}
    tokens, divergences = compute_advantages([played], scores, coef=0.5)
    # Sampled at -1: 0.5 * (-0.5 + 1), 0.5 * (-3 + 1), 0.5 * (-1.5 + 1).
    assert tokens == {"t-0": ((0.25, -1.0), (-0.25,)), "t-1": ((0.0,),)}
    # -1 + 0.5, -1 + 3, -1 + 1.5, whatever the coefficient.
    assert divergences == [-0.5, 2.0, 0.5]

    # They are added to the advantages of the reward, token by token.
    advantages = StepAdvantages(turns={"t-0": (2.0, -1.0), "t-1": (4.0,)}, tokens=tokens, metrics={})
    batch = build_batch([played], advantages.turns, token_advantages=advantages.tokens)
    trained = [
        (token, advantage)
        for segment in batch.segments
        for token, advantage, masked in zip(segment.token_ids, segment.advantages, segment.mask, strict=True)
        if masked
    ]
    assert trained == [(7, 2.25), (8, 1.0), (10, -1.25)]
    # The statistics of a step are about turns: 2 + (0.25 - 1) / 2.
    assert advantages.average() == {"t-0": (1.625, -1.25), "t-1": (4.0,)}


def test_a_step_in_which_nothing_is_trained_has_no_divergence(turn, group):
    greedy = group("t", [turn(0, None, [5, 6], [11, 12], temperature=0.0)])
    with teacher_of(weights_of(1)) as teacher:
        assert distill([greedy], alone(teacher)) == ({"t-0": ((0.0, 0.0),)}, {})


def test_the_teacher_scores_at_the_temperature_of_each_turn_and_equal_texts_once(turn, group, monkeypatch):
    fork = [
        turn(0, None, [9, 10], [11, 12, 13]),
        turn(1, 0, [9, 10, 11, 12, 13, 14], [15]),
        turn(2, 0, [9, 10, 11, 12, 13, 20], [21, 22], temperature=0.5),
    ]
    groups = [group("a", fork, [turn(0, None, [9, 10], [11, 12])]), group("b", [turn(0, None, [9, 10], [30])])]
    weights = weights_of(1)
    with teacher_of(weights) as teacher:
        given = teacher.source._engine._given
        compute, scored = given._compute, []

        def count(weights, texts):
            scored.append([(text.temperature, text.token_ids) for text in texts])
            return compute(weights, texts)

        monkeypatch.setattr(given, "_compute", count)
        tokens, metrics = distill(groups, alone(teacher))
    # The answer 11, 12 of the other trajectory and the first turn of the fork are parts of the first text.
    (together,) = scored  # and one pass computes their common beginnings once
    assert sorted(together) == [
        (0.5, (9, 10, 11, 12, 13, 20, 21, 22)),
        (1.0, (9, 10, 11, 12, 13, 14, 15)),
        (1.0, (9, 10, 30)),
    ]
    # A learner with the teacher's weights computes the same log-probabilities, and each token was sampled at -1.
    learner = TorchLearner(make_policy())
    learner.load_weights(weights)
    zeros = {one.id: (0.0,) * len(one.turns) for each in groups for one in each.trajectories}
    batch = build_batch(groups, zeros, token_advantages=tokens, drop_zero_advantage=False)
    found = [
        advantage
        for segment in batch.segments
        for advantage, masked in zip(segment.advantages, segment.mask, strict=True)
        if masked
    ]
    expected = [known + 1.0 for known in learner.logprobs(batch)]
    assert found == pytest.approx(expected, abs=1e-4)
    assert metrics["training/teacher_kl"] == pytest.approx(-fmean(expected), abs=1e-4)


def test_a_teacher_that_fails_ends_the_step(turn, group):
    played = [group("t", [turn(0, None, [5, 6], [7, 8])])]
    with teacher_of(weights_of(1)) as teacher:
        without_weights = replace(teacher, source=teacher.source.freeze())
        with pytest.raises(ServiceError, match=r"the teacher \(policies.expert\) did not score .* no weights yet"):
            distill(played, alone(without_weights))
    for logprob in (math.nan, -math.inf):
        with pytest.raises(ServiceError, match=r"policies.expert.*one finite log-probability for each token"):
            distill(played, alone(Teacher(name="expert", source=ScriptedEngine([], logprob=logprob), coef=1.0)))


def test_each_kind_of_task_has_its_teacher_and_tasks_without_one_get_no_advantage(turn, group):
    groups = [group(name, [turn(0, None, [5, 6], [7, 8])]) for name in ("a", "b", "c", "d")]
    # The third kind has the teacher of the first, and the fourth has none.
    first, second = (
        Teacher(name=name, source=ScriptedEngine([], logprob=logprob), coef=coef)
        for name, logprob, coef in (("first", -0.5, 1.0), ("second", -4.0, 0.5))
    )
    teachers = Teachers(by_kind={"a": first, "b": second, "c": first}, kind_of=lambda task: task.id)
    tokens, metrics = distill(groups, teachers)
    # Sampled at -1: -0.5 + 1, and 0.5 * (-4 + 1).
    assert tokens == {"a-0": ((0.5, 0.5),), "b-0": ((-1.5, -1.5),), "c-0": ((0.5, 0.5),), "d-0": ((0.0, 0.0),)}
    # Six tokens: four differ by -0.5, and two by 3.
    assert metrics == {
        "training/teacher_kl": pytest.approx(4 / 6),
        "training/teacher_kl/first": -0.5,
        "training/teacher_kl/second": 3.0,
    }
    assert teachers.all == [first, second]


PROMPTS = [(8, 20), (9, 30)]
NUM_STEPS = 40


def train_student(teachers: Mapping[tuple[int, int], int], coef: float, *, turn, group, num_steps: int = NUM_STEPS):
    """Train a student with the advantages of teachers alone. `teachers` are the seeds of their weights by prompt. Return the
    metrics of each step."""
    policy = make_policy()
    learner = TorchLearner(policy)
    engine = TorchEngine(policy, learner.export_weights(), max_running=64, kv_cache_tokens=4096)
    known = {
        seed: Teacher(name=f"expert-{seed}", source=engine.freeze(weights_of(seed)), coef=coef)
        for seed in teachers.values()
    }
    experts = {str(prompt): known[seed] for prompt, seed in teachers.items()}

    def advantages(groups):
        turns = {one.id: (0.0,) for each in groups for one in each.trajectories}
        tokens, metrics = distill(groups, Teachers(by_kind=experts, kind_of=lambda task: task.id))
        return StepAdvantages(turns=turns, tokens=tokens, metrics=metrics)

    rule = UpdateRule(
        learner=learner,
        advantages=advantages,
        loss_fn="ppo",
        loss_config={},
        loss_reduction=token_mean,
        needs_every_token=True,
        num_passes=1,
        learning_rate=lambda step: 0.03 * (1 - step / (NUM_STEPS + 1)),
    )
    steps = []
    try:
        for step in range(1, num_steps + 1):
            played = event_loop.submit(roll_out(engine, step, turn)).result()
            groups = [group(str(prompt), *members) for prompt, members in zip(PROMPTS, played, strict=True)]
            steps.append(learn(rule, groups, step).metrics)
            event_loop.submit(engine.load_weights(learner.export_weights(), step)).result()
    finally:
        event_loop.submit(engine.close()).result()
    return steps


async def roll_out(engine: Engine, step: int, turn) -> list[list[list[Turn]]]:
    """Sample 32 answers to each prompt."""

    async def play(prompt: tuple[int, ...], seed: int) -> list[Turn]:
        request = SampleRequest(
            session_id=f"{prompt}-{seed}",
            prompt_ids=prompt,
            sampling=Sampling(max_tokens=2),
            stop_ids=frozenset(),
            seed=1000 * step + seed,
        )
        done = await engine.sample(request)
        return [replace(turn(0, None, prompt, done.token_ids), sampled_logprobs=done.sampled_logprobs)]

    return [await asyncio.gather(*(play(prompt, seed) for seed in range(32))) for prompt in PROMPTS]


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2)], ids=["one teacher", "a teacher for each prompt"])
def test_a_student_reaches_its_teachers_without_a_reward(seeds, turn, group):
    steps = train_student(dict(zip(PROMPTS, seeds, strict=True)), 1.0, turn=turn, group=group)
    names = {f"training/teacher_kl/expert-{seed}" for seed in seeds} if len(set(seeds)) > 1 else {"training/teacher_kl"}
    for name in names:
        divergences = [metrics[name] for metrics in steps]
        # Two different random models differ by more than 1 nat per token at first.
        assert fmean(divergences[:3]) > 1.0
        assert fmean(divergences[-5:]) < fmean(divergences[:3]) / 3, divergences


@pytest.mark.parametrize("coef", [0.0, -1.0])
def test_without_these_advantages_or_with_the_opposite_ones_it_does_not(coef, turn, group):
    steps = train_student(dict.fromkeys(PROMPTS, 1), coef, turn=turn, group=group, num_steps=10)
    divergences = [metrics["training/teacher_kl"] for metrics in steps]
    assert fmean(divergences[-3:]) > 0.8 * fmean(divergences[:3]), divergences
