"""The faults of the generator: their kinds, their severities, the correct diagnoses, and the half that is held back.

This file was written before any rule was tuned on runs with these faults. A cell is one severity of a fault, or one
healthy setting, in one recipe. Half of the cells of each kind are for tuning, and half are for the reported figures.
The split is drawn with `SPLIT_SEED`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPLIT_SEED = 20
RECIPES: Mapping[str, Path] = {
    name: ROOT / "benchmarks" / "hacks" / "healthy" / name
    for name in ("tagged_answer", "partial_credit", "number_guess", "bounded_shaping")
}
COMMON = (
    "schedule.max_steps=14",
    "schedule.val_every=7",
    "schedule.save_every=0",
    "evaluation.val_num_tasks=24",
    "batch.global_batch_size=6",
    "batch.group_size=6",
    "evaluation.allow_zero_baseline=true",
)
"""Overrides of every run. They are small enough for less than a minute on one core."""
RATE = 5e-4
"""The learning rate of the four recipes."""
PLANTED = "benchmarks.diagnosis.planted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of fault, with the way to plant it and the correct first changes."""

    kind: str
    severities: Mapping[str, Sequence[str]]
    """Overrides by the name of the severity."""
    shows: frozenset[str] = frozenset()
    """Rules that name the fault. A code change is correct if and only if one of these rules proposes it."""
    changes: frozenset[str] = frozenset()
    """A right first change sets one of these settings."""
    is_rate_lower: bool | None = None
    """Whether a right change lowers the learning rate (True) or raises it (False)."""
    template: str | None = None
    """Name of a wrong chat template, if the template is the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run to train."""

    name: str
    fault: Fault
    severity: str
    recipe: str
    half: str
    """Purpose of the cell: `tuning`, `held_back`, `fresh`, `second` or `third`."""
    planted: Sequence[str]
    """Overrides that plant the fault."""

    @property
    def overrides(self) -> tuple[str, ...]:
        return (*COMMON, *self.planted)

    @property
    def is_broken(self) -> bool:
        return self.fault.kind != HEALTHY


HEALTHY = "healthy"


def _rate(factor: float) -> list[str]:
    return [f"optimizer.learning_rate={RATE * factor:g}"]


def _reward(name: str, *more: str) -> list[str]:
    return [f"reward.reward={PLANTED}:{name}", *more]


PAYS_WRONG = frozenset(
    {
        "reward.paid_for_wrong",
        "reward.rises_alone",
        "stall.validation_flat",
        "reward.disagrees",
        "reward.inverted",
        "answers.length_drift",
        "reward.component_takes_over",
    }
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        kind="rate_high", severities={"x30": _rate(30), "x100": _rate(100), "x1000": _rate(1000)},
        shows=frozenset({"optimizer.updates_too_large", "stall.collapse"}),
        changes=frozenset({"optimizer.learning_rate"}), is_rate_lower=True,
    ),
    Fault(
        kind="rate_low", severities={"x0.01": _rate(0.01), "x0.001": _rate(0.001)},
        shows=frozenset({"stall.nothing_moves"}), changes=frozenset({"optimizer.learning_rate"}), is_rate_lower=False,
    ),
    Fault(
        kind="frozen",
        severities={
            "x1e-6": _rate(1e-6), "eps": ["optimizer.adam_eps=1000"],
            "clip": ["optimizer.adam_grad_clip_norm=1e-12"],
        },
        shows=frozenset({"stall.nothing_moves"}),
        changes=frozenset({"optimizer.learning_rate", "optimizer.adam_eps", "optimizer.adam_grad_clip_norm"}),
        is_rate_lower=False,
    ),
    Fault(
        kind="batch",
        severities={
            "2": ["batch.global_batch_size=1", "batch.group_size=2"],
            "4": ["batch.global_batch_size=2", "batch.group_size=2"],
        },
        shows=frozenset({"batch.too_small", "stall.groups_agree", "system.filtered"}),
        changes=frozenset({"batch.global_batch_size", "batch.group_size", "batch.refill_groups"}),
    ),
    Fault(
        kind="temperature", severities={"0.05": ["sampling.temperature=0.05"], "2": ["sampling.temperature=2.0"]},
        shows=frozenset({"stall.groups_agree", "system.filtered", "evaluation.confidently_wrong", "sampling.temperature"}),
        changes=frozenset({"sampling.temperature"}),
    ),
    Fault(
        kind="labels",
        severities={
            "50": _reward("labels_wrong_50", f"reward.scorer={PLANTED}:labels_wrong_scorer_50"),
            "50-scored": _reward("labels_wrong_50"), "100": _reward("labels_wrong_100"),
        },
        shows=frozenset({"tasks.labels", "tasks.surer_not_right", "reward.disagrees", "stall.flat_from_start"}),
    ),
    Fault(
        kind="contradicts", severities={"50": _reward("contradicts_50"), "100": _reward("contradicts_100")},
        shows=PAYS_WRONG,
    ),
    Fault(
        kind="noise", severities={"60": _reward("noise_60"), "100": _reward("noise_100")},
        shows=PAYS_WRONG,
    ),
    Fault(
        kind="tools",
        severities={str(share): [f"environment.target={PLANTED}:ToolsRaise_{share}"] for share in (30, 60, 100)},
        shows=frozenset({"tools.failing"}),
    ),
    Fault(
        kind="lost", severities={"30": [f"environment.target={PLANTED}:IsLost_30"]},
        shows=frozenset({"environment.failures"}),
    ),
    Fault(
        kind="turns", severities={"2": ["environment.max_turns=2"]},
        shows=frozenset({"budgets.turns_in_training"}), changes=frozenset({"environment.max_turns"}),
    ),
    Fault(
        kind="tokens", severities={"4": ["sampling.sampling_max_tokens=4"], "6": ["sampling.sampling_max_tokens=6"]},
        shows=frozenset({"budgets.turn_tokens_in_training"}), changes=frozenset({"sampling.sampling_max_tokens"}),
    ),
    Fault(
        kind="stale",
        severities={
            "cispo": [
                "rollout.max_steps_off_policy=2", "algorithm.loss_fn=cispo", "algorithm.off_policy_correction=geometric_mask",
                *_rate(4),
            ],
            "none": [
                "rollout.max_steps_off_policy=8", "algorithm.loss_fn=importance_sampling",
                "algorithm.off_policy_correction=none", *_rate(8),
            ],
        },
        shows=frozenset({"system.stale", "stall.collapse", "optimizer.updates_too_large"}),
        changes=frozenset({"rollout.max_steps_off_policy", "algorithm.off_policy_correction", "optimizer.learning_rate"}),
        is_rate_lower=True,
    ),
    Fault(
        kind="template", severities={"roles": (), "no_end": ()},
        shows=frozenset({"evaluation.all_zero", "format.template", "prompt.template"}),
    ),
    Fault(
        kind="reward_constant", severities={"0": _reward("constant_0"), "1": _reward("constant_100")},
        shows=frozenset({"reward.constant"}),
    ),
    Fault(
        kind="reward_unread", severities={"all": _reward("never_reads_100")},
        shows=frozenset({"stall.flat_from_start", "reward.constant"}),
    ),
    Fault(
        kind="reward_hacked", severities={"any": _reward("pays_any_100"), "length": _reward("pays_length_100")},
        shows=PAYS_WRONG,
    ),
    Fault(
        kind=HEALTHY,
        severities={
            "seed-1": ["run.seed=1"], "seed-2": ["run.seed=2"], "x0.5": _rate(0.5), "x2": [*_rate(2), "run.seed=3"],
            "warm": ["sampling.temperature=0.9", "run.seed=4"], "large": ["batch.group_size=8", "run.seed=5"],
            "ahead": ["rollout.max_steps_off_policy=1", "run.seed=6"],
            "unscaled": ["algorithm.advantage_method=rloo", "run.seed=7"],
        },
    ),
)  # fmt: skip


def cells() -> list[Cell]:
    """Return all cells in the order of training. Kinds alternate, so that any part of the list contains every kind."""
    rng = random.Random(SPLIT_SEED)
    by_kind: list[list[Cell]] = []
    for fault in FAULTS:
        places = [(severity, recipe) for severity in fault.severities for recipe in RECIPES]
        rng.shuffle(places)
        by_kind.append(
            [
                Cell(
                    name=f"{fault.kind}-{severity}-{recipe}",
                    fault=fault,
                    severity=severity,
                    recipe=recipe,
                    half="held_back" if place % 2 else "tuning",
                    planted=fault.severities[severity],
                )
                for place, (severity, recipe) in enumerate(places)
            ]
        )
    longest = max(map(len, by_kind))
    return [kind[place] for place in range(longest) for kind in by_kind if place < len(kind)]
