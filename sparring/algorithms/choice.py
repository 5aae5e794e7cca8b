"""What a recipe's `[algorithm]` chooses: functions by name, the knobs that they read, and what makes no sense together.

A function declares what it can be tuned with by its keyword arguments. So a knob is read exactly when a chosen function
names it, its default is the function's, and a knob that nothing names is refused.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

from sparring.algorithms.advantages import ADVANTAGES
from sparring.algorithms.corrections import CORRECTIONS
from sparring.algorithms.losses import LOSSES
from sparring.algorithms.reductions import REDUCTIONS

ROOMS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "advantage_method": ADVANTAGES,
    "loss_fn": {name: function for name, function in LOSSES.items() if name != "cross_entropy"},
    "off_policy_correction": CORRECTIONS,
    "loss_reduction": REDUCTIONS,
}
"""The keys that name a function, and the functions to choose from. `cross_entropy` is the warm start's."""

PLUG_INS = {
    "advantage_method": "function(groups, *, ...), which gets a list of groups of "
    "sparring.algorithms.advantages.Rewarded and returns a number for each group, trajectory and turn",
    "loss_fn": "function(tokens, *, ...), which gets sparring.algorithms.losses.Tokens and returns the loss of each token "
    "[M] and a dict of metrics [M]",
}
"""The keys that also take a `module:function`, and what it looks like."""

UNGROUPED = ("monte_carlo", "reinforce_pp")
"""Advantage methods that make sense for a group of one."""
PER_TURN = ("group_based_per_turn", "group_based_per_turn_immediate", "monte_carlo", "reinforce_pp", "return_to_go_loo")
"""Advantage methods that read the reward of every turn; the others give a trajectory one number."""
SILENT_WHEN_EQUAL = ("group_based", "rloo", "opo", "gpg", "grpo_passk", "pass_at_k")
"""Advantage methods that give a group exactly 0 when all its members earn the same in total."""
WITHOUT_RATIO = ("gpg",)
"""Losses that do not look at who sampled."""
CAPS = {"cispo": "clip_high_threshold", "dppo_tv": "ratio_cap"}
"""Losses that multiply with a ratio up to a bound, and the key of the bound."""
WITHOUT_TRUST_REGION = ("importance_sampling", "cispo", "gpg")
"""Losses that remove no gradient however far the policy has moved from the one that sampled."""

Problem: TypeAlias = tuple[str, str, tuple[str, ...]]
"""(key, message, other keys that it depends on), all within [algorithm] unless they name a section."""


class Section(Protocol):
    """What is read of `config.AlgorithmSection`."""

    @property
    def advantage_method(self) -> str: ...
    @property
    def loss_fn(self) -> str: ...
    @property
    def loss_reduction(self) -> str: ...
    @property
    def policy_ratio(self) -> str: ...
    @property
    def num_passes(self) -> int: ...
    @property
    def turn_rewards(self) -> str: ...
    @property
    def kl_coef(self) -> float: ...
    @property
    def options(self) -> Mapping[str, object]: ...
    @property
    def takes_reward_off(self) -> bool: ...
    @property
    def model_fields_set(self) -> set[str]: ...

    def knobs(self) -> dict[str, Any]: ...


def knobs_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword arguments of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


def bind(function: Callable[..., Any], given: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with those of the given knobs that it reads."""
    own = knobs_of(function)
    return partial(function, **{name: value for name, value in given.items() if name in own})


def misfit(function: object, reserved: Container[str] = ()) -> str | None:
    """Why an object cannot be a plug-in, which takes one argument and knobs by keyword, none of them `reserved`; None if
    it can."""
    if not callable(function):
        return f"is {function!r}, which is no function"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return f"is {function!r}, which does not say what arguments it takes"
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(positional) != 1 or any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return f"has the signature {inspect.signature(function)}"
    knobs = knobs_of(function)
    required = [name for name, default in knobs.items() if default is inspect.Parameter.empty]
    if required:
        return f"needs a default for its keyword argument {required[0]!r}"
    taken = [name for name in knobs if name in reserved]
    if taken:
        return (
            f"has a keyword argument {taken[0]!r}, which is a key of [algorithm] that is applied around it; rename it"
        )
    return None


def refusals(
    section: Section, *, correction: str, group_size: int, max_steps_off_policy: int, trained_weights: str
) -> Iterator[Problem]:
    """What cannot work together, and what nothing that was chosen would read."""
    chosen = {
        "advantage_method": section.advantage_method, "loss_fn": section.loss_fn,
        "off_policy_correction": correction, "loss_reduction": section.loss_reduction,
    }  # fmt: skip
    knobs, method = section.knobs(), section.advantage_method
    functions: list[Callable[..., Any]] = []
    has_plug_in = is_unknown = False
    for key, name in chosen.items():
        if ":" in name and key in PLUG_INS:
            has_plug_in = True
        elif name in ROOMS[key]:
            functions.append(ROOMS[key][name])
        else:
            is_unknown = True
            yield key, _unknown(key, name), ()
    if not is_unknown and not has_plug_in:
        yield from _unread(section, chosen, functions)
    if method in ADVANTAGES:
        yield from _undivided(section)
    if section.options and not has_plug_in:
        yield "options", "is given, but only functions of your own (`module:function`) read it; leave it out.", ()
    for side in ("low", "high"):
        if {f"clip_{side}_threshold", f"clip_{side}_epsilon"} <= section.model_fields_set:
            yield (
                f"clip_{side}_epsilon",
                f"is given beside clip_{side}_threshold, which says the same in other words; leave one of them out.",
                (),
            )
    if knobs.get("clip_low_threshold") == knobs.get("clip_high_threshold") == 1:
        yield (
            "clip_high_threshold",
            "is 1, as clip_low_threshold is, which leaves no room for the probability ratio; use, for example, 0.8 and 1.2.",
            ("clip_low_threshold",),
        )
    if group_size < 2 and method in ADVANTAGES and method not in UNGROUPED:
        yield (
            "batch.group_size",
            f"is {group_size}, but {method!r} compares the episodes of a group; use at least 2, or advantage_method = "
            "'monte_carlo' or 'reinforce_pp'.",
            ("advantage_method",),
        )
    pass_k = knobs.get("pass_k", 2)
    if method == "pass_at_k" and pass_k >= group_size > 1:
        yield (
            "pass_k",
            f"is {pass_k}, but a group has {group_size} episodes, and with one subset of {pass_k} at most there is nothing to "
            "compare: every advantage would be 0. Lower it, or raise batch.group_size.",
            ("advantage_method", "batch.group_size"),
        )
    if section.turn_rewards == "sum" and (method in PER_TURN or ":" in method):
        yield (
            "turn_rewards",
            f"is 'sum', but advantage_method = {method!r} reads the reward of every turn; leave it out.",
            ("advantage_method",),
        )
    if method in ("pass_at_k", "gpg") and section.takes_reward_off:
        yield (
            "kl_form",
            f"is 'reward_k1', but advantage_method = {method!r} needs rewards of 0 and 1, which are no longer such when a "
            "divergence is taken off; use 'loss_k2'.",
            ("advantage_method", "kl_coef"),
        )
    if "kl_form" in section.model_fields_set and section.kl_coef == 0:
        yield "kl_form", "is given, but kl_coef is 0, so there is no divergence to take; set kl_coef.", ("kl_coef",)
    if section.kl_coef > 0 and trained_weights == "full":
        yield (
            "kl_coef",
            f"is {section.kl_coef}, but with trained_weights = 'full' there is no base model left to diverge from; train "
            "an adapter (trained_weights = 'lora').",
            ("model.trained_weights",),
        )
    if section.loss_fn == "gspo" and correction == "sequence_tis" and section.policy_ratio == "two_policy":
        yield (
            "off_policy_correction",
            "is 'sequence_tis', which stands in place of each token's ratio, but 'gspo' has one ratio for the whole trajectory; "
            "use 'sequence_mask', or policy_ratio = 'three_policy'.",
            ("loss_fn", "policy_ratio"),
        )
    if section.policy_ratio == "three_policy" and correction == "none" and max_steps_off_policy > 0:
        yield (
            "policy_ratio",
            "is 'three_policy', but off_policy_correction = 'none' leaves the policy that sampled out of account while "
            "tokens may be stale; use a correction, or 'two_policy'.",
            ("off_policy_correction", "rollout.max_steps_off_policy"),
        )


def default_correction(loss: str, *, max_steps_off_policy: int) -> str:
    """On whenever tokens may be older than the policy. A loss that clips needs its weights bounded; one that does not needs
    something that leaves out what the policy has moved away from."""
    if max_steps_off_policy == 0:
        return "none"
    return "geometric_mask" if loss in WITHOUT_TRUST_REGION else "token_tis"


def warnings(
    section: Section, *, correction: str, group_size: int, max_steps_off_policy: int
) -> Iterator[tuple[str, str]]:
    """What works and is probably not meant: (key, message)."""
    knobs, method, loss = section.knobs(), section.advantage_method, section.loss_fn
    if loss == "cispo" and knobs.get("clip_low_threshold", 0) > 0:
        yield (
            "clip_low_threshold",
            f"is {knobs['clip_low_threshold']} with loss_fn = 'cispo': tokens that the policy has already left keep at "
            "least that weight and go on being pushed away, which can run away off-policy. 0 is the safe bound.",
        )
    if method == "group_based_per_turn_immediate":
        yield (
            "advantage_method",
            "is 'group_based_per_turn_immediate', which kept 15% of the true gradient in benchmarks/per_turn_bias.py: "
            "how many baselines are subtracted is up to the policy. 'group_based_per_turn' keeps all of it.",
        )
    if method == "grpo_passk" and group_size > 1:
        silent = 1 - (1 - 1 / group_size) ** (group_size - 1)
        yield (
            "advantage_method",
            f"is 'grpo_passk', which is silent wherever two episodes are best: with rewards of 0 and 1 at least "
            f"{silent:.0%} of groups of {group_size}. 'pass_at_k' learns from all mixed groups.",
        )
    if loss in WITHOUT_RATIO and correction == "none" and (max_steps_off_policy > 0 or section.num_passes > 1):
        yield (
            "loss_fn",
            f"is {loss!r}, which does not look at who sampled, but tokens may be older than the policy; set "
            "off_policy_correction, or use 'ppo'.",
        )
    elif loss in WITHOUT_TRUST_REGION and correction in ("none", "token_tis") and max_steps_off_policy > 0:
        yield (
            "off_policy_correction",
            f"is {correction!r} with loss_fn = {loss!r}, which removes no gradient however far the policy has moved: one of "
            "ten such runs collapsed. 'geometric_mask', the default, leaves out what the policy has moved away from.",
        )
    if correction != "none" and max_steps_off_policy == 0 and section.num_passes == 1:
        yield (
            "off_policy_correction",
            f"is {correction!r}, but play is synchronous and every batch is used once, so its weights are 1 up to rounding.",
        )
    if loss == "gspo" and section.loss_reduction not in ("trajectory_mean", "sequence_mean_token_mean"):
        yield (
            "loss_reduction",
            f"is {section.loss_reduction!r}, but 'gspo' has one ratio a trajectory and is meant for 'trajectory_mean'.",
        )
    if section.policy_ratio == "three_policy" and section.num_passes == 1:
        yield (
            "policy_ratio",
            "is 'three_policy' with one pass over each batch: the ratio to the policy before the step is then always 1. Set "
            "num_passes, or use 'two_policy'.",
        )


def in_effect(section: Section, *, correction: str) -> dict[str, Any]:
    """What the built-in functions among the chosen read: their knobs with the given values or the functions' own."""
    chosen = {
        "advantage_method": section.advantage_method, "loss_fn": section.loss_fn,
        "off_policy_correction": correction, "loss_reduction": section.loss_reduction,
    }  # fmt: skip
    values: dict[str, Any] = {}
    for key, name in chosen.items():
        if name in ROOMS[key]:
            values |= knobs_of(ROOMS[key][name])
    return values | {name: value for name, value in section.knobs().items() if name in values}


def _unknown(key: str, name: str) -> str:
    near = difflib.get_close_matches(name, ROOMS[key], n=1)
    hint = f"the nearest one is {near[0]!r}; " if near else ""
    own = ", or a `module:function` of your own" if key in PLUG_INS else ""
    return f"is {name!r}, which is not known; {hint}choose from {', '.join(ROOMS[key])}{own}."


def _unread(section: Section, chosen: Mapping[str, str], functions: list[Callable[..., Any]]) -> Iterator[Problem]:
    read = {name for function in functions for name in knobs_of(function)}
    for name in section.knobs():
        spelled = name if name in section.model_fields_set else name.replace("_threshold", "_epsilon")
        if name in section.options or name in read:
            continue
        readers = {
            key: [called for called, function in room.items() if name in knobs_of(function)]
            for key, room in ROOMS.items()
        }
        key = next(key for key, called in readers.items() if called)
        yield (
            spelled,
            f"is given, but {key} = {chosen[key]!r} does not read it; leave it out, or choose "
            f"{' or '.join(map(repr, readers[key]))}.",
            (key,),
        )


def _undivided(section: Section) -> Iterator[Problem]:
    knobs, own = section.knobs(), knobs_of(ADVANTAGES[section.advantage_method])
    is_read = "advantage_std" in knobs and "advantage_std" in own
    if is_read and not knobs.get("advantage_normalization", own["advantage_normalization"]):
        yield (
            "advantage_std",
            "is given, but nothing is divided by a standard deviation unless advantage_normalization = true; leave it out.",
            ("advantage_normalization", "advantage_method"),
        )
