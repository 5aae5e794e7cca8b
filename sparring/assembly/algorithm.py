"""Load the functions that a recipe's `[algorithm]` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sparring.algorithms import choice
from sparring.algorithms.credit import TurnAdvantages, credit
from sparring.algorithms.reductions import Counts
from sparring.config import HYPERPARAMETERS, Config
from sparring.errors import UsageError
from sparring.runtime.plugins import load_object
from sparring.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """The functions of `[algorithm]` (built-in functions or the user's own), with their hyperparameters bound.

    The learner binds the hyperparameters of the loss.
    """

    advantages: Callable[[Sequence[TrajectoryGroup]], TurnAdvantages]
    loss: Callable[..., Any]
    reduction: Callable[[Counts], float]


def load_algorithm(config: Config, recipe_dir: Path) -> Algorithm:
    """Load the functions that `[algorithm]` names, and bind their hyperparameters.

    Raises UsageError if a user's function cannot be called as needed or does not read an option.
    """
    section = config.algorithm
    reserved = [name for name in type(section).model_fields if name not in HYPERPARAMETERS]
    chosen: dict[str, Callable[..., Any]] = {}
    for key in ("advantage_method", "loss_fn", "loss_reduction"):
        name = getattr(section, key)
        chosen[key] = load_object(name, folder=recipe_dir) if ":" in name else choice.FUNCTIONS[key][name]
        problem = choice.explain_misfit(chosen[key], reserved)
        if problem is not None:
            raise UsageError(f"algorithm.{key} = {name!r} {problem}; write {choice.PLUG_INS[key]}.")
    correction = choice.FUNCTIONS["off_policy_correction"][config.off_policy_correction]
    read = {name for function in (*chosen.values(), correction) for name in choice.read_defaults(function)}
    for name in section.hyperparameters():
        if name not in read:
            key = f"options.{name}" if name in section.options else name
            raise UsageError(
                f"algorithm.{key} is given, but none of the chosen functions takes a keyword argument {name!r}; leave it "
                "out, or give your function that argument."
            )
    bound = {key: choice.bind(function, section.hyperparameters()) for key, function in chosen.items()}
    if section.advantage_method in (*choice.PER_TURN, *choice.WITHOUT_REWARD) or ":" in section.advantage_method:
        sums_turn_rewards = None
    else:
        sums_turn_rewards = section.turn_rewards == "sum"
    return Algorithm(
        advantages=partial(credit, estimator=bound["advantage_method"], sums_turn_rewards=sums_turn_rewards),
        loss=chosen["loss_fn"],
        reduction=bound["loss_reduction"],
    )
