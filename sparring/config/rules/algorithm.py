"""Rules of [algorithm]: functions and hyperparameters that cannot work together (RULES) or probably should not (WARNINGS)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from sparring.algorithms.advantages import ADVANTAGES
from sparring.algorithms.choice import (
    FUNCTIONS,
    PER_TURN,
    PLUG_INS,
    UNGROUPED,
    WITHOUT_RATIO,
    WITHOUT_REWARD,
    WITHOUT_TRUST_REGION,
    find_readers,
    read_defaults,
)
from sparring.config.rules.conflict import ConfigRule, Conflict
from sparring.config.sections import AlgorithmSection, Config


def unknown_functions(config: Config) -> Iterator[Conflict]:
    for key, name in config.chosen_functions().items():
        is_plug_in = ":" in name and key in PLUG_INS
        if name not in FUNCTIONS[key] and not is_plug_in:
            yield Conflict(f"algorithm.{key}", _describe_unknown(key, name))


def hyperparameters_of_other_functions(config: Config) -> Iterator[Conflict]:
    section, chosen = config.algorithm, config.chosen_functions()
    if any(name not in FUNCTIONS[key] for key, name in chosen.items()):
        return  # a user's function may read any hyperparameter
    read = {name for key, called in chosen.items() for name in read_defaults(FUNCTIONS[key][called])}
    for name in section.hyperparameters():
        if name in section.options or name in read:
            continue
        readers = find_readers(name)
        key = next(key for key, names in readers.items() if names)
        spelled = name if name in section.model_fields_set else name.replace("_threshold", "_epsilon")
        yield Conflict(
            f"algorithm.{spelled}",
            f"is given, but {key} = {chosen[key]!r} does not read it; leave it out, or choose "
            f"{' or '.join(map(repr, readers[key]))}.",
            (f"algorithm.{key}",),
        )


def deviation_without_normalization(config: Config) -> Iterator[Conflict]:
    section = config.algorithm
    if section.advantage_method not in ADVANTAGES:
        return
    values, defaults = section.hyperparameters(), read_defaults(ADVANTAGES[section.advantage_method])
    is_read = "advantage_std" in values and "advantage_std" in defaults
    if is_read and not values.get("advantage_normalization", defaults["advantage_normalization"]):
        yield Conflict(
            "algorithm.advantage_std",
            "is given, but nothing is divided by a standard deviation unless advantage_normalization = true; leave it out.",
            ("algorithm.advantage_normalization", "algorithm.advantage_method"),
        )


def options_without_plug_in(config: Config) -> Iterator[Conflict]:
    chosen = config.chosen_functions()
    if config.algorithm.options and not any(":" in chosen[key] for key in PLUG_INS):
        message = "is given, but only functions of your own (`module:function`) read it; leave it out."
        yield Conflict("algorithm.options", message)


def options_that_are_keys(config: Config) -> Iterator[Conflict]:
    for name in config.algorithm.options:
        if name in AlgorithmSection.model_fields:
            message = f"is a key of [algorithm] itself; write algorithm.{name} = ... without options."
            yield Conflict(f"algorithm.options.{name}", message)


def clip_bound_given_twice(config: Config) -> Iterator[Conflict]:
    for side in ("low", "high"):
        if {f"clip_{side}_threshold", f"clip_{side}_epsilon"} <= config.algorithm.model_fields_set:
            message = f"is given together with clip_{side}_threshold, which sets the same bound; leave one of them out."
            yield Conflict(f"algorithm.clip_{side}_epsilon", message)


def clip_bounds_that_meet(config: Config) -> Iterator[Conflict]:
    values = config.algorithm.hyperparameters()
    if values.get("clip_low_threshold") == values.get("clip_high_threshold") == 1:
        yield Conflict(
            "algorithm.clip_high_threshold",
            "is 1 and clip_low_threshold is 1 too, so every probability ratio is clipped to 1; use, for example, 0.8 and 1.2.",
            ("algorithm.clip_low_threshold",),
        )


def group_of_one(config: Config) -> Iterator[Conflict]:
    method, group_size = config.algorithm.advantage_method, config.batch.group_size
    if group_size < 2 and method in ADVANTAGES and method not in UNGROUPED:
        yield Conflict(
            "batch.group_size",
            f"is {group_size}, but {method!r} compares the episodes of a group; use at least 2, or advantage_method = "
            "'monte_carlo' or 'reinforce_pp'.",
            ("algorithm.advantage_method",),
        )


def subsets_as_large_as_the_group(config: Config) -> Iterator[Conflict]:
    pass_k, group_size = config.algorithm.hyperparameters().get("pass_k", 2), config.batch.group_size
    if config.algorithm.advantage_method == "pass_at_k" and pass_k >= group_size > 1:
        yield Conflict(
            "algorithm.pass_k",
            f"is {pass_k}, but a group has only {group_size} episodes, so there is at most one subset of {pass_k} and every "
            "advantage would be 0. Lower pass_k, or raise batch.group_size.",
            ("algorithm.advantage_method", "batch.group_size"),
        )


def sum_for_a_method_per_turn(config: Config) -> Iterator[Conflict]:
    method = config.algorithm.advantage_method
    if config.algorithm.turn_rewards == "sum" and method in WITHOUT_REWARD:
        message = f"is 'sum', but advantage_method = {method!r} does not read rewards; leave turn_rewards out."
        yield Conflict("algorithm.turn_rewards", message, ("algorithm.advantage_method",))
    if config.algorithm.turn_rewards == "sum" and (method in PER_TURN or ":" in method):
        yield Conflict(
            "algorithm.turn_rewards",
            f"is 'sum', but advantage_method = {method!r} reads the reward of each turn; leave turn_rewards out.",
            ("algorithm.advantage_method",),
        )


def divergence_in_binary_rewards(config: Config) -> Iterator[Conflict]:
    section = config.algorithm
    if section.advantage_method in ("pass_at_k", "gpg") and section.takes_reward_off:
        yield Conflict(
            "algorithm.kl_form",
            f"is 'reward_k1', but advantage_method = {section.advantage_method!r} needs rewards of 0 and 1, and subtracting a "
            "divergence changes them; use 'loss_k2'.",
            ("algorithm.advantage_method", "algorithm.kl_coef"),
        )


def divergence_without_weight(config: Config) -> Iterator[Conflict]:
    if "kl_form" in config.algorithm.model_fields_set and config.algorithm.kl_coef == 0:
        message = "is given, but kl_coef is 0, so no divergence is computed; set kl_coef."
        yield Conflict("algorithm.kl_form", message, ("algorithm.kl_coef",))


def divergence_without_base_model(config: Config) -> Iterator[Conflict]:
    if config.algorithm.kl_coef > 0 and config.model.trained_weights == "full":
        yield Conflict(
            "algorithm.kl_coef",
            f"is {config.algorithm.kl_coef}, but with trained_weights = 'full' no base model is kept for comparison; train an "
            "adapter (trained_weights = 'lora').",
            ("model.trained_weights",),
        )


def missing_teacher(config: Config) -> Iterator[Conflict]:
    for kind, name in config.algorithm.teachers.items():
        key = f"algorithm.teacher.{kind}" if kind else "algorithm.teacher"
        if name not in config.policies:
            known = [one for one, policy in config.policies.items() if policy.role != "trained"]
            others = f", or choose {' or '.join(map(repr, known))}" if known else ""
            message = f"is {name!r}, but the recipe has no [policies.{name}]; add this section{others}."
            yield Conflict(key, message, ("policies",))
        elif config.policies[name].role == "trained":
            yield Conflict(
                key,
                f"is {name!r}, which is the policy in training itself, so there is nothing to learn from it; use a policy with "
                "role = 'frozen' or 'endpoint'.",
                (f"policies.{name}",),
            )


def teachers_without_kinds(config: Config) -> Iterator[Conflict]:
    if isinstance(config.algorithm.teacher, dict) and config.curriculum.kind_field is None:
        yield Conflict(
            "algorithm.teacher",
            "names a teacher for each kind of task, but no field of a task contains its kind; set curriculum.kind_field, or "
            "name one teacher.",
            ("curriculum.kind_field",),
        )


def teacher_coef_without_teacher(config: Config) -> Iterator[Conflict]:
    if "teacher_coef" in config.algorithm.model_fields_set and not config.algorithm.teachers:
        message = "is given, but the recipe has no teacher; set algorithm.teacher, or leave it out."
        yield Conflict("algorithm.teacher_coef", message, ("algorithm.teacher",))


def nothing_to_learn_from(config: Config) -> Iterator[Conflict]:
    section = config.algorithm
    if section.advantage_method in WITHOUT_REWARD and not section.teachers:
        yield Conflict(
            "algorithm.advantage_method",
            f"is {section.advantage_method!r}, so rewards give no advantage, and there is no teacher that gives one; set "
            "algorithm.teacher, or use another method.",
            ("algorithm.teacher",),
        )


def divergence_in_unread_rewards(config: Config) -> Iterator[Conflict]:
    section = config.algorithm
    if section.advantage_method in WITHOUT_REWARD and section.takes_reward_off:
        yield Conflict(
            "algorithm.kl_form",
            f"is 'reward_k1', but advantage_method = {section.advantage_method!r} does not read the reward; use 'loss_k2'.",
            ("algorithm.advantage_method", "algorithm.kl_coef"),
        )


def token_weights_with_gspo(config: Config) -> Iterator[Conflict]:
    section = config.algorithm
    is_two_policy = section.policy_ratio == "two_policy"
    if section.loss_fn == "gspo" and config.off_policy_correction == "sequence_tis" and is_two_policy:
        yield Conflict(
            "algorithm.off_policy_correction",
            "is 'sequence_tis', which replaces each token's ratio, but 'gspo' has one ratio per trajectory; use "
            "'sequence_mask', or policy_ratio = 'three_policy'.",
            ("algorithm.loss_fn", "algorithm.policy_ratio"),
        )


def three_policies_without_correction(config: Config) -> Iterator[Conflict]:
    is_stale = config.rollout.max_steps_off_policy > 0
    if config.algorithm.policy_ratio == "three_policy" and config.off_policy_correction == "none" and is_stale:
        yield Conflict(
            "algorithm.policy_ratio",
            "is 'three_policy', but off_policy_correction = 'none' ignores the policy that sampled while tokens may be stale; "
            "use a correction, or 'two_policy'.",
            ("algorithm.off_policy_correction", "rollout.max_steps_off_policy"),
        )


RULES: tuple[ConfigRule, ...] = (
    unknown_functions,
    hyperparameters_of_other_functions,
    deviation_without_normalization,
    options_without_plug_in,
    options_that_are_keys,
    clip_bound_given_twice,
    clip_bounds_that_meet,
    group_of_one,
    subsets_as_large_as_the_group,
    sum_for_a_method_per_turn,
    divergence_in_binary_rewards,
    divergence_without_weight,
    divergence_without_base_model,
    missing_teacher,
    teachers_without_kinds,
    teacher_coef_without_teacher,
    nothing_to_learn_from,
    divergence_in_unread_rewards,
    token_weights_with_gspo,
    three_policies_without_correction,
)


def cispo_with_a_lower_bound(config: Config) -> Iterator[Conflict]:
    low = config.algorithm.hyperparameters().get("clip_low_threshold", 0)
    if config.algorithm.loss_fn == "cispo" and low > 0:
        yield Conflict(
            "algorithm.clip_low_threshold",
            f"is {low} with loss_fn = 'cispo', so tokens that have become unlikely keep at least this weight and become even "
            "less likely. Off-policy training can diverge. Use 0.",
        )


def biased_advantages_per_turn(config: Config) -> Iterator[Conflict]:
    if config.algorithm.advantage_method == "group_based_per_turn_immediate":
        yield Conflict(
            "algorithm.advantage_method",
            "is 'group_based_per_turn_immediate', which kept 15% of the true gradient in benchmarks/per_turn_bias.py, because "
            "the policy determines how many baselines are subtracted. Use 'group_based_per_turn', which keeps the whole "
            "gradient.",
        )


def zero_advantages_of_passk(config: Config) -> Iterator[Conflict]:
    group_size = config.batch.group_size
    if config.algorithm.advantage_method == "grpo_passk" and group_size > 1:
        silent = 1 - (1 - 1 / group_size) ** (group_size - 1)
        yield Conflict(
            "algorithm.advantage_method",
            f"is 'grpo_passk', whose advantages are all 0 if two episodes share the best reward. With rewards of 0 and 1, these "
            f"are at least {silent:.0%} of groups of {group_size}. Use 'pass_at_k', which learns from all mixed groups.",
        )


def stale_tokens_without_correction(config: Config) -> Iterator[Conflict]:
    section, correction = config.algorithm, config.off_policy_correction
    loss, max_steps = section.loss_fn, config.rollout.max_steps_off_policy
    if loss in WITHOUT_RATIO and correction == "none":
        if max_steps > 0 or section.num_passes > 1:
            yield Conflict(
                "algorithm.loss_fn",
                f"is {loss!r}, which ignores the policy that sampled, but tokens may come from an older policy; set "
                "off_policy_correction, or use 'ppo'.",
            )
    elif loss in WITHOUT_TRUST_REGION and correction in ("none", "token_tis") and max_steps > 0:
        yield Conflict(
            "algorithm.off_policy_correction",
            f"is {correction!r} with loss_fn = {loss!r}, which keeps every gradient even if the policy has changed a lot. One "
            "of ten such runs collapsed. Use the default 'geometric_mask', which leaves out tokens whose probability has "
            "changed too much.",
        )


def correction_without_stale_tokens(config: Config) -> Iterator[Conflict]:
    is_on_policy = config.rollout.max_steps_off_policy == 0 and config.algorithm.num_passes == 1
    if config.off_policy_correction != "none" and is_on_policy:
        yield Conflict(
            "algorithm.off_policy_correction",
            f"is {config.off_policy_correction!r}, but rollouts are synchronous and every batch is used once, so the weights of "
            "the correction are 1 up to rounding. Leave it out.",
        )


def token_reduction_with_gspo(config: Config) -> Iterator[Conflict]:
    reduction = config.algorithm.loss_reduction
    if config.algorithm.loss_fn == "gspo" and reduction not in ("trajectory_mean", "sequence_mean_token_mean"):
        yield Conflict(
            "algorithm.loss_reduction",
            f"is {reduction!r}, but 'gspo' has one ratio per trajectory and is designed for 'trajectory_mean'; use that.",
        )


def three_policies_in_one_pass(config: Config) -> Iterator[Conflict]:
    if config.algorithm.policy_ratio == "three_policy" and config.algorithm.num_passes == 1:
        yield Conflict(
            "algorithm.policy_ratio",
            "is 'three_policy' with one pass over each batch, so the ratio to the policy before the step is always 1. Set "
            "num_passes, or use 'two_policy'.",
        )


WARNINGS: tuple[ConfigRule, ...] = (
    cispo_with_a_lower_bound,
    biased_advantages_per_turn,
    zero_advantages_of_passk,
    stale_tokens_without_correction,
    correction_without_stale_tokens,
    token_reduction_with_gspo,
    three_policies_in_one_pass,
)
"""Rules about combinations that work but are probably not intended. Warnings do not stop a run."""


def _describe_unknown(key: str, name: str) -> str:
    near = difflib.get_close_matches(name, FUNCTIONS[key], n=1)
    hint = f"the nearest one is {near[0]!r}; " if near else ""
    own = ", or a `module:function` of your own" if key in PLUG_INS else ""
    return f"is {name!r}, which is not known; {hint}choose from {', '.join(FUNCTIONS[key])}{own}."
