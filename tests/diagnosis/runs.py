"""Runs built from numbers: what a rule of the diagnosis would read from a folder, with one fault or none."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from sparring.config import Config, validate
from sparring.diagnosis.diagnose import diagnose
from sparring.diagnosis.observed import Observed
from sparring.findings import Finding
from sparring.run_folders.history import Digest, History, RecordedCall, StepRecord
from sparring.types import Outcome

TASKS, MEMBERS = 8, 6
"""Groups of a step; episodes of a group."""


def config(*overrides: str) -> Config:
    recipe = {
        "environment": {"target": "environment:Shop", "max_turns": 5},
        "reward": {"reward": "environment:reward", "scorer": "environment:scorer"},
        "batch": {"global_batch_size": TASKS, "group_size": MEMBERS},
        "rollout": {"max_steps_off_policy": 0},
        "sampling": {"sampling_max_tokens": 32},
        "schedule": {"max_epochs": 100},
    }
    return validate(recipe, overrides)


def episode(step: int, task: int, member: int, *, reward: float, **more: Any) -> Digest:
    fields: dict[str, Any] = {
        "id": f"train/{step}/task-{task}/{member}.0", "task_id": f"task-{task}", "prompt": "find b 2?", "texts": ("ans c",),
        "answer": "ans c", "calls": (RecordedCall(name="get", arguments='{"key": "b"}'),), "num_malformed": 0, "num_turns": 2,
        "num_tokens": 20, "outcome": Outcome.FINISHED, "reward": reward, "components": {}, "score": reward, "score_parts": {},
        "temperature": 1.0, "seconds": 0.1, "policy_seconds": 0.09,
    }  # fmt: skip
    return Digest(**(fields | more))


Rate = Callable[[int, int], float]
"""How likely an episode of a step is to be right, by step and task."""


def run(
    rate: Rate | float = 0.5,
    *,
    steps: int = 20,
    seed: int = 0,
    num_tasks: int = 64,
    change: Callable[[Digest, int], Digest] = lambda digest, step: digest,
    metrics: Callable[[int], Mapping[str, float]] = lambda step: {},
    validations: Mapping[int, float] | None = None,
    more: Sequence[str] = (),
    **observed: Any,
) -> Observed:
    """Build a run in which episodes are right by chance; `change` is made to each, `metrics` replaces what follows from them."""
    rng, history = random.Random(seed), History()
    for step in range(0 if validations else 1, steps + 1):
        groups = []
        for place in range(TASKS if step else 0):
            task = (step * TASKS + place) % num_tasks
            likely = rate if isinstance(rate, float) else rate(step, task)
            groups.append(
                [
                    change(episode(step, task, member, reward=float(rng.random() < likely)), step)
                    for member in range(MEMBERS)
                ]
            )
        shown = {**(_metrics(groups) if step else {}), **(metrics(step) if step else {})}
        if validations is not None and step in validations:
            mean = validations[step]
            shown |= {
                "val/reward/mean": mean,
                "val/score/mean": mean,
                "val/reward/std": (mean * (1 - mean)) ** 0.5,
                "val/reward/zero_frac": 1 - mean,
                "val/reward/num_prompts": 48.0,
            }
        record = StepRecord(step=step, metrics=shown, train=tuple(one for group in groups for one in group))
        history._steps.append(record)  # pyright: ignore[reportPrivateUsage] - digests are all that is kept of trajectories
    return Observed(config=config(*more), history=history, **observed)


def _metrics(groups: Sequence[Sequence[Digest]]) -> dict[str, float]:
    """Return the metrics that a step of these groups would have written."""
    everything = [one for group in groups for one in group]
    rewards = [one.reward for one in everything]
    equal = [group for group in groups if len({one.reward for one in group}) == 1]
    valid = [one.reward for group in groups if group not in equal for one in group]
    scores = [one.score for one in everything if one.score is not None]
    return {
        "rollout/reward/mean": fmean(rewards), "rollout/reward/min": min(rewards), "rollout/reward/max": max(rewards),
        "rollout/reward/zero_frac": fmean(reward == 0 for reward in rewards),
        **({"rollout/reward/valid_mean": fmean(valid)} if valid else {}),
        **({"rollout/score/mean": fmean(scores)} if scores else {}),
        "rollout/agent/tool_calls": fmean(len(one.calls) for one in everything), "rollout/agent/tool_errors": 0.0,
        "rollout/turns/mean": fmean(one.num_turns for one in everything),
        "rollout/logprob/nz_mean": -0.5, "rollout/tokens/response_mean": 10.0, "rollout/tokens/prompt_mean": 30.0,
        "analysis/batch_valid_ratio": 1 - len(equal) / len(groups),
        "training/entropy": 0.5, "training/grad_norm": 0.4, "training/effective_sample_size": 1.0,
        "training/staleness_max": 0.0, "training/logprob_difference_mean": 1e-7, "training/logprob_difference_max": 1e-6,
        "training/steps_without_signal": float(len(equal) == len(groups)), "rollout/replaced_groups": 0.0, "rollout/lost": 0.0,
        "timing_s/rollout": 1.0, "timing_s/training": 1.0, "timing_s/step": 2.0,
    }  # fmt: skip


def rises(begin: float, end: float, steps: int = 20) -> Rate:
    return lambda step, task: begin + (end - begin) * min(1.0, step / steps)


def diagnose_run(observed: Observed) -> dict[str, Finding]:
    """Return the findings of a diagnosis by rule, including the silenced ones."""
    found = diagnose("runs/x", observed)
    return {one.rule: one for one in (*found.findings, *(silent.finding for silent in found.silenced))}


def changed(**values: Any) -> Callable[[Digest, int], Digest]:
    """Every episode with these fields."""
    return lambda digest, step: replace(digest, **values)


def number(digest: Digest) -> int:
    return int(digest.task_id.split("-")[1])


def hopeless(step: int, task: int) -> float:
    """Seven of eight tasks are never right; the eighth half of the time."""
    return 0.5 if task % 8 == 0 else 0.0


def falls(step: int, task: int) -> float:
    """Up to 0.9 until step 15, then gone."""
    return rises(0.2, 0.9, 15)(step, task) if step <= 20 else 0.02
