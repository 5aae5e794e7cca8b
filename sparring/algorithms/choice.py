"""The functions that a recipe can choose from, their properties and their hyperparameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any

from sparring.algorithms.advantages import ADVANTAGES
from sparring.algorithms.corrections import CORRECTIONS
from sparring.algorithms.losses import LOSSES
from sparring.algorithms.reductions import REDUCTIONS

FUNCTIONS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "advantage_method": ADVANTAGES,
    "loss_fn": {name: function for name, function in LOSSES.items() if name != "cross_entropy"},
    "off_policy_correction": CORRECTIONS,
    "loss_reduction": REDUCTIONS,
}
"""The keys of [algorithm] that name a function, and the functions to choose from. Only the warm start uses `cross_entropy`."""

PLUG_INS = {
    "advantage_method": "function(groups, *, ...), which takes a list of groups of "
    "sparring.algorithms.advantages.Rewarded and returns a number for each group, trajectory and turn",
    "loss_fn": "function(tokens, *, ...), which takes sparring.algorithms.losses.Tokens and returns the loss of each "
    "token "
    "[M] and a dict of metrics [M]",
}
"""The keys that also accept a `module:function`, with its signature in words."""

UNGROUPED = ("monte_carlo", "reinforce_pp", "none")
"""Advantage methods that make sense for a group of one."""
PER_TURN = ("group_based_per_turn", "group_based_per_turn_immediate", "monte_carlo", "reinforce_pp", "return_to_go_loo")
"""Advantage methods that read the reward of every turn. The other methods give a trajectory one number."""
WITHOUT_REWARD = ("none",)
"""Advantage methods that do not read rewards."""
SILENT_WHEN_EQUAL = ("group_based", "rloo", "opo", "gpg", "grpo_passk", "pass_at_k")
"""Advantage methods that give a group exactly 0 if all its members have the same total reward."""
WITHOUT_RATIO = ("gpg",)
"""Losses that ignore the sampling policy."""
CAPS = {"cispo": "clip_high_threshold", "dppo_tv": "ratio_cap"}
"""Losses that multiply by a ratio up to a bound, with the key of the bound."""
WITHOUT_TRUST_REGION = ("importance_sampling", "cispo", "gpg")
"""Losses that never remove a gradient, however far the policy has moved from the sampling policy."""


def read_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the hyperparameters of a function, which are its keyword arguments with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


def find_readers(hyperparameter: str) -> dict[str, list[str]]:
    """Return the functions that read a hyperparameter, grouped by the key of [algorithm] that selects them."""
    return {
        key: [name for name, function in functions.items() if hyperparameter in read_defaults(function)]
        for key, functions in FUNCTIONS.items()
    }


def bind(function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function with its hyperparameters set from `values`. Other entries of `values` are ignored."""
    own = read_defaults(function)
    return partial(function, **{name: value for name, value in values.items() if name in own})


def explain_misfit(function: object, reserved: Container[str] = ()) -> str | None:
    """Return why an object cannot be a plug-in, or None if it can.

    A plug-in takes one positional argument and hyperparameters by keyword. No hyperparameter may have a name in
    `reserved`.
    """
    if not callable(function):
        return f"is {function!r}, which is not a function"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return f"is {function!r}, whose arguments cannot be read"
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(positional) != 1 or any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return f"has the signature {inspect.signature(function)}"
    defaults = read_defaults(function)
    required = [name for name, default in defaults.items() if default is inspect.Parameter.empty]
    if required:
        return f"needs a default for its keyword argument {required[0]!r}"
    taken = [name for name in defaults if name in reserved]
    if taken:
        return (
            f"has a keyword argument {taken[0]!r}, which is already a key of [algorithm] with another use; rename the "
            "argument"
        )
    return None


def default_correction(loss: str, *, max_steps_off_policy: int) -> str:
    """Return the default correction of a recipe: `none`, unless tokens may be older than the policy.

    A loss that clips needs bounded weights (`token_tis`). A loss that does not clip needs a correction that leaves out
    trajectories if the policy has moved too far away from them (`geometric_mask`).
    """
    if max_steps_off_policy == 0:
        return "none"
    return "geometric_mask" if loss in WITHOUT_TRUST_REGION else "token_tis"


def resolve_hyperparameters(chosen: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters that the chosen built-in functions read, from `values` or from their defaults."""
    defaults: dict[str, Any] = {}
    for key, name in chosen.items():
        if name in FUNCTIONS[key]:
            defaults |= read_defaults(FUNCTIONS[key][name])
    return defaults | {name: value for name, value in values.items() if name in defaults}
