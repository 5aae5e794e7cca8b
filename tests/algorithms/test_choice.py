"""What `[algorithm]` refuses and what it warns of, each by its exact words."""

import pytest

from sparring.algorithms.choice import explain_misfit, read_defaults
from sparring.config import Config, find_warnings, validate
from sparring.errors import ConfigError

NEEDED = {"environment": {"target": "environment:Shop"}, "reward": {"reward": "environment:reward"}}


def config(*overrides: str) -> Config:
    """Overrides of [algorithm], or of a section that they name."""
    sections = ("batch.", "curriculum.", "model.", "optimizer.", "policies.", "rollout.", "schedule.")
    return validate(NEEDED, [one if one.startswith(sections) else f"algorithm.{one}" for one in overrides])


REFUSED = [
    (
        ["loss_fn=importance_sampling", "clip_low_threshold=0.8"],
        "algorithm.clip_low_threshold: is given, but loss_fn = 'importance_sampling' does not read it; leave it out, or "
        "choose 'ppo' or 'cispo' or 'gspo'.",
    ),
    (
        ["loss_fn=gpg", "clip_high_epsilon=0.2"],
        "algorithm.clip_high_epsilon: is given, but loss_fn = 'gpg' does not read it; leave it out, or choose 'ppo' or "
        "'cispo' or 'gspo'.",
    ),
    (
        ["loss_fn=cispo", "dual_clip=3"],
        "algorithm.dual_clip: is given, but loss_fn = 'cispo' does not read it; leave it out, or choose 'ppo'.",
    ),
    (
        ["loss_fn=ppo", "tv_low_threshold=0.1"],
        "algorithm.tv_low_threshold: is given, but loss_fn = 'ppo' does not read it; leave it out, or choose 'dppo_tv'.",
    ),
    (
        ["loss_fn=ppo", "tv_high_threshold=0.1"],
        "algorithm.tv_high_threshold: is given, but loss_fn = 'ppo' does not read it; leave it out, or choose 'dppo_tv'.",
    ),
    (
        ["loss_fn=gspo", "ratio_cap=10"],
        "algorithm.ratio_cap: is given, but loss_fn = 'gspo' does not read it; leave it out, or choose 'dppo_tv'.",
    ),
    (
        ["advantage_method=rloo", "advantage_normalization=true"],
        "algorithm.advantage_normalization: is given, but advantage_method = 'rloo' does not read it; leave it out, or "
        "choose 'group_based' or 'group_based_per_turn' or 'monte_carlo' or 'grpo_passk'.",
    ),
    (
        ["advantage_method=opo", "advantage_std=population"],
        "algorithm.advantage_std: is given, but advantage_method = 'opo' does not read it; leave it out, or choose "
        "'group_based' or 'group_based_per_turn' or 'grpo_passk'.",
    ),
    (
        ["gamma=0.9"],
        "algorithm.gamma: is given, but advantage_method = 'group_based' does not read it; leave it out, or choose "
        "'group_based_per_turn' or 'group_based_per_turn_immediate' or 'monte_carlo' or 'return_to_go_loo' or "
        "'reinforce_pp'.",
    ),
    (
        ["advantage_method=grpo_passk", "pass_k=2"],
        "algorithm.pass_k: is given, but advantage_method = 'grpo_passk' does not read it; leave it out, or choose "
        "'pass_at_k'.",
    ),
    (
        ["advantage_normalization=false", "advantage_std=population"],
        "algorithm.advantage_std: is given, but nothing is divided by a standard deviation unless "
        "advantage_normalization = true; leave it out.",
    ),
    (
        ["advantage_method=group_based_per_turn", "advantage_std=population"],
        "algorithm.advantage_std: is given, but nothing is divided by a standard deviation unless "
        "advantage_normalization = true; leave it out.",
    ),
    (
        ["off_policy_correction=token_tis", "correction_low=0.5"],
        "algorithm.correction_low: is given, but off_policy_correction = 'token_tis' does not read it; leave it out, or "
        "choose 'icepop' or 'sequence_mask' or 'geometric_mask'.",
    ),
    (
        ["off_policy_correction=none", "correction_high=2"],
        "algorithm.correction_high: is given, but off_policy_correction = 'none' does not read it; leave it out, or "
        "choose 'token_tis' or 'sequence_tis' or 'icepop' or 'sequence_mask' or 'geometric_mask'.",
    ),
    (
        ["loss_norm=100"],
        "algorithm.loss_norm: is given, but loss_reduction = 'trajectory_mean' does not read it; leave it out, or choose "
        "'sequence_sum_norm'.",
    ),
    (
        ["clip_low_threshold=0.8", "clip_low_epsilon=0.2"],
        "algorithm.clip_low_epsilon: is given together with clip_low_threshold, which sets the same bound; leave "
        "one of them out.",
    ),
    (
        ["clip_high_threshold=1.2", "clip_high_epsilon=0.2"],
        "algorithm.clip_high_epsilon: is given together with clip_high_threshold, which sets the same bound; leave "
        "one of them out.",
    ),
    (
        ["clip_low_threshold=1", "clip_high_threshold=1"],
        "algorithm.clip_high_threshold: is 1 and clip_low_threshold is 1 too, so every probability ratio is clipped "
        "to 1; use, for example, 0.8 and 1.2.",
    ),
    (
        ["batch.group_size=1"],
        "batch.group_size: is 1, but 'group_based' compares the episodes of a group; use at least 2, or advantage_method "
        "= 'monte_carlo' or 'reinforce_pp'.",
    ),
    (
        ["advantage_method=pass_at_k", "pass_k=9"],
        "algorithm.pass_k: is 9, but a group has only 8 episodes, so there is at most one subset of 9 and every "
        "advantage would be 0. Lower pass_k, or raise batch.group_size.",
    ),
    (
        ["advantage_method=pass_at_k", "batch.group_size=2"],
        "algorithm.pass_k: is 2, but a group has only 2 episodes, so there is at most one subset of 2 and every "
        "advantage would be 0. Lower pass_k, or raise batch.group_size.",
    ),
    (
        ["loss_fn=gspo", "off_policy_correction=sequence_tis"],
        "algorithm.off_policy_correction: is 'sequence_tis', which replaces each token's ratio, but 'gspo' has one "
        "ratio per trajectory; use 'sequence_mask', or policy_ratio = 'three_policy'.",
    ),
    (
        ["advantage_method=mine:estimate", "turn_rewards=sum"],
        "algorithm.turn_rewards: is 'sum', but advantage_method = 'mine:estimate' reads the reward of each turn; "
        "leave turn_rewards out.",
    ),
    (
        ["loss_fn=mine:loss", "advantage_normalization=false", "advantage_std=population"],
        "algorithm.advantage_std: is given, but nothing is divided by a standard deviation unless advantage_normalization = "
        "true; leave it out.",
    ),
    (
        ["curriculum.select=mixed", "schedule.max_epochs=2", "batch.group_size=2", "curriculum.history_groups=1"],
        "curriculum.history_groups: is 1, which with batch.group_size = 2 gives too few episodes to measure how hard "
        "a task is: after one lucky episode the task would be left out. Make the product of the two at least 4.",
    ),
    (
        ["advantage_method=monte_carlo", "turn_rewards=sum"],
        "algorithm.turn_rewards: is 'sum', but advantage_method = 'monte_carlo' reads the reward of each turn; leave "
        "turn_rewards out.",
    ),
    (
        ["kl_form=loss_k3"],
        "algorithm.kl_form: is given, but kl_coef is 0, so no divergence is computed; set kl_coef.",
    ),
    (
        ["kl_coef=0.1", "model.trained_weights=full"],
        "algorithm.kl_coef: is 0.1, but with trained_weights = 'full' no base model is kept for comparison; train an "
        "adapter (trained_weights = 'lora').",
    ),
    (
        ["policy_ratio=three_policy", "off_policy_correction=none"],
        "algorithm.policy_ratio: is 'three_policy', but off_policy_correction = 'none' ignores the policy that "
        "sampled while tokens may be stale; use a correction, or 'two_policy'.",
    ),
    (
        ["options.alpha=1"],
        "algorithm.options: is given, but only functions of your own (`module:function`) read it; leave it out.",
    ),
    (
        ["loss_fn=mine:loss", "options.clip_low_threshold=0.5"],
        "algorithm.options.clip_low_threshold: is a key of [algorithm] itself; write algorithm.clip_low_threshold = "
        "... without options.",
    ),
    (
        ["advantage_method=pass_at_k", "kl_coef=0.1", "kl_form=reward_k1"],
        "algorithm.kl_form: is 'reward_k1', but advantage_method = 'pass_at_k' needs rewards of 0 and 1, and "
        "subtracting a divergence changes them; use 'loss_k2'.",
    ),
    (
        ["advantage_method=group_based_per_turn", "batch.refill_groups=2"],
        "batch.refill_groups: is 2, but with this [algorithm] a group with equal total rewards still has a gradient; "
        "leave it out, or use a method that compares total rewards, without a teacher, an entropy bonus or a divergence.",
    ),
    (
        ["entropy_coef=0.1", "batch.refill_groups=2"],
        "batch.refill_groups: is 2, but with this [algorithm] a group with equal total rewards still has a gradient; "
        "leave it out, or use a method that compares total rewards, without a teacher, an entropy bonus or a divergence.",
    ),
    (
        ["curriculum.easy_threshold=0.9"],
        "curriculum.easy_threshold: is given, but select = 'all' does not read it; leave it out, or use 'mixed'.",
    ),
    (
        ["curriculum.select=frontier", "curriculum.hard_threshold=0.1", "schedule.max_epochs=2"],
        "curriculum.hard_threshold: is given, but select = 'frontier' does not read it; leave it out, or use 'mixed'.",
    ),
    (
        ["curriculum.history_groups=3"],
        "curriculum.history_groups: is given, but select = 'all' does not read it; leave it out, or use 'mixed' or "
        "'frontier'.",
    ),
    (
        [
            "curriculum.select=mixed",
            "curriculum.hard_threshold=0.5",
            "curriculum.easy_threshold=0.5",
            "schedule.max_epochs=2",
        ],
        "curriculum.hard_threshold: is 0.5, but easy_threshold is 0.5, so no task would be between them; lower "
        "hard_threshold.",
    ),
    (
        ["curriculum.select=mixed"],
        "curriculum.select: is 'mixed', which depends on earlier episodes of a task, but schedule.max_epochs = 1 "
        "uses every task once; raise max_epochs, or leave select out.",
    ),
    (
        ["curriculum.kind_weights.hard=2.0"],
        "curriculum.kind_weights: is given, but kind_field is not, so all tasks are of one kind; set kind_field to "
        "the field that contains the kind.",
    ),
    (
        ["curriculum.kind_block_size=8"],
        "curriculum.kind_block_size: is given, but kind_field is not, so all tasks are of one kind; set kind_field to "
        "the field that contains the kind.",
    ),
    (
        ["curriculum.kind_field=hops", "curriculum.kind_weights.3=0.0"],
        "curriculum.kind_weights.3: is 0.0, but it should be greater than 0.",
    ),
    (
        ["loss_fn=pppo"],
        "algorithm.loss_fn: is 'pppo', which is not known; the nearest one is 'ppo'; choose from importance_sampling, "
        "ppo, cispo, gspo, gpg, dppo_tv, or a `module:function` of your own.",
    ),
    (
        ["loss_fn=cross_entropy"],
        "algorithm.loss_fn: is 'cross_entropy', which is not known; choose from importance_sampling, ppo, cispo, gspo, "
        "gpg, dppo_tv, or a `module:function` of your own.",
    ),
    (
        ["advantage_method=grpo"],
        "algorithm.advantage_method: is 'grpo', which is not known; choose from group_based, group_based_per_turn, "
        "group_based_per_turn_immediate, monte_carlo, return_to_go_loo, rloo, reinforce_pp, reinforce_pp_baseline, opo, "
        "gpg, grpo_passk, pass_at_k, none, or a `module:function` of your own.",
    ),
    (
        ["off_policy_correction=tis"],
        "algorithm.off_policy_correction: is 'tis', which is not known; choose from none, token_tis, sequence_tis, "
        "icepop, sequence_mask, geometric_mask.",
    ),
    (
        ["loss_reduction=mymodule:mine"],
        "algorithm.loss_reduction: is 'mymodule:mine', which is not known; choose from trajectory_mean, token_mean, "
        "prompt_mean, sequence_mean_token_mean, sequence_mean_token_sum, sequence_sum_norm, sum.",
    ),
    (
        ["model.trained_weights=full", "optimizer.lora_plus_lr_ratio=16"],
        "optimizer.lora_plus_lr_ratio: is given, but trained_weights = 'full' trains no adapter; leave it out.",
    ),
    (
        ["teacher=expert"],
        "algorithm.teacher: is 'expert', but the recipe has no [policies.expert]; add this section.",
    ),
    (
        ["teacher=expert", "policies.critic.role=trained", "policies.other.weights=base"],
        "algorithm.teacher: is 'expert', but the recipe has no [policies.expert]; add this section, or choose 'other'.",
    ),
    (
        ["teacher=critic", "policies.critic.role=trained"],
        "algorithm.teacher: is 'critic', which is the policy in training itself, so there is nothing to learn from it; use a "
        "policy with role = 'frozen' or 'endpoint'.",
    ),
    (
        ["teacher.easy=expert", "curriculum.kind_field=kind"],
        "algorithm.teacher.easy: is 'expert', but the recipe has no [policies.expert]; add this section.",
    ),
    (
        ["teacher.easy=expert", "policies.expert.weights=base"],
        "algorithm.teacher: names a teacher for each kind of task, but no field of a task contains its kind; set "
        "curriculum.kind_field, or name one teacher.",
    ),
    (
        ["teacher_coef=0.5"],
        "algorithm.teacher_coef: is given, but the recipe has no teacher; set algorithm.teacher, or leave it out.",
    ),
    (
        ["teacher=expert", "policies.expert.weights=base", "teacher_coef=0.0"],
        "algorithm.teacher_coef: is 0.0, but it should be greater than 0.",
    ),
    (
        ["teacher=expert", "policies.expert.weights=base", "batch.refill_groups=2"],
        "batch.refill_groups: is 2, but with this [algorithm] a group with equal total rewards still has a gradient; "
        "leave it out, or use a method that compares total rewards, without a teacher, an entropy bonus or a divergence.",
    ),
    (
        ["advantage_method=none"],
        "algorithm.advantage_method: is 'none', so rewards give no advantage, and there is no teacher that gives one; set "
        "algorithm.teacher, or use another method.",
    ),
    (
        ["advantage_method=none", "teacher=expert", "policies.expert.weights=base", "kl_coef=0.1", "kl_form=reward_k1"],
        "algorithm.kl_form: is 'reward_k1', but advantage_method = 'none' does not read the reward; use 'loss_k2'.",
    ),
    (
        ["advantage_method=none", "teacher=expert", "policies.expert.weights=base", "turn_rewards=sum"],
        "algorithm.turn_rewards: is 'sum', but advantage_method = 'none' does not read rewards; leave turn_rewards out.",
    ),
    (
        ["optimizer.warmup_steps=60"],
        "optimizer.warmup_steps: is 60, but the run ends at schedule.max_steps = 50, so the rate would never reach "
        "learning_rate; lower it.",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "message"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_what_cannot_work_or_would_be_read_by_nothing_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(*overrides)
    assert [f"{problem.key}: {problem.message}" for problem in refused.value.problems] == [message]


WARNED = [
    (
        ["loss_fn=cispo", "off_policy_correction=token_tis"],
        "algorithm.off_policy_correction: is 'token_tis' with loss_fn = 'cispo', which keeps every gradient even if "
        "the policy has changed a lot. One of ten such runs collapsed. Use the default 'geometric_mask', which "
        "leaves out tokens whose probability has changed too much.",
    ),
    (
        ["loss_fn=cispo", "clip_low_threshold=1", "rollout.max_steps_off_policy=0"],
        "algorithm.clip_low_threshold: is 1.0 with loss_fn = 'cispo', so tokens that have become unlikely keep at "
        "least this weight and become even less likely. Off-policy training can diverge. Use 0.",
    ),
    (
        ["advantage_method=group_based_per_turn_immediate"],
        "algorithm.advantage_method: is 'group_based_per_turn_immediate', which kept 15% of the true gradient in "
        "benchmarks/per_turn_bias.py, because the policy determines how many baselines are subtracted. Use "
        "'group_based_per_turn', which keeps the whole gradient.",
    ),
    (
        # At best one of 8 succeeds with probability (1 - 1/8)^7 = 0.393.
        ["advantage_method=grpo_passk"],
        "algorithm.advantage_method: is 'grpo_passk', whose advantages are all 0 if two episodes share the best "
        "reward. With rewards of 0 and 1, these are at least 61% of groups of 8. Use 'pass_at_k', which learns from "
        "all mixed groups.",
    ),
    (
        ["loss_fn=gpg", "off_policy_correction=none"],
        "algorithm.loss_fn: is 'gpg', which ignores the policy that sampled, but tokens may come from an older "
        "policy; set off_policy_correction, or use 'ppo'.",
    ),
    (
        ["loss_fn=importance_sampling", "off_policy_correction=none"],
        "algorithm.off_policy_correction: is 'none' with loss_fn = 'importance_sampling', which keeps every gradient "
        "even if the policy has changed a lot. One of ten such runs collapsed. Use the default 'geometric_mask', "
        "which leaves out tokens whose probability has changed too much.",
    ),
    (
        ["off_policy_correction=icepop", "rollout.max_steps_off_policy=0"],
        "algorithm.off_policy_correction: is 'icepop', but rollouts are synchronous and every batch is used once, so "
        "the weights of the correction are 1 up to rounding. Leave it out.",
    ),
    (
        ["loss_fn=gspo", "loss_reduction=token_mean"],
        "algorithm.loss_reduction: is 'token_mean', but 'gspo' has one ratio per trajectory and is designed for "
        "'trajectory_mean'; use that.",
    ),
    (
        ["policy_ratio=three_policy"],
        "algorithm.policy_ratio: is 'three_policy' with one pass over each batch, so the ratio to the policy before "
        "the step is always 1. Set num_passes, or use 'two_policy'.",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "message"), WARNED, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_what_works_and_is_probably_not_meant_is_reported(overrides: list[str], message: str) -> None:
    assert [f"{problem.key}: {problem.message}" for problem in find_warnings(config(*overrides))] == [message]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["rollout.max_steps_off_policy=0"],
        ["loss_fn=cispo", "clip_high_threshold=4", "off_policy_correction=geometric_mask"],
        [
            "advantage_method=group_based_per_turn",
            "gamma=0.9",
            "advantage_normalization=true",
            "advantage_std=population",
        ],
        ["advantage_method=monte_carlo", "batch.group_size=1"],
        ["policy_ratio=three_policy", "num_passes=2"],
        ["off_policy_correction=icepop", "correction_low=0.2", "correction_high=5"],
        ["loss_reduction=sequence_sum_norm", "loss_norm=512"],
        ["kl_coef=0.01", "kl_form=reward_k1", "entropy_coef=0.01"],
        ["turn_rewards=sum"],
        ["advantage_method=mine:advantages", "loss_fn=mine:loss", "options.alpha=1", "gamma=0.5"],
    ],
)
def test_what_makes_sense_passes_without_a_word(overrides: list[str]) -> None:
    assert find_warnings(config(*overrides)) == []


def test_epsilons_are_distances_from_1() -> None:
    hyperparameters = config("clip_low_epsilon=0.2", "clip_high_epsilon=0.28").algorithm.hyperparameters()
    assert hyperparameters == pytest.approx({"clip_low_threshold": 0.8, "clip_high_threshold": 1.28})


@pytest.mark.parametrize(
    ("loss", "max_steps_off_policy", "expected"),
    [
        ("ppo", 0, "none"),
        ("ppo", 1, "token_tis"),
        ("dppo_tv", 3, "token_tis"),
        ("cispo", 0, "none"),
        ("cispo", 1, "geometric_mask"),
        ("importance_sampling", 3, "geometric_mask"),
        ("gpg", 3, "geometric_mask"),
    ],
)
def test_stale_tokens_are_corrected_by_default(loss: str, max_steps_off_policy: int, expected: str) -> None:
    chosen = config(f"loss_fn={loss}", f"rollout.max_steps_off_policy={max_steps_off_policy}")
    assert chosen.off_policy_correction == expected
    assert "off_policy_correction" not in " ".join(warning.key for warning in find_warnings(chosen))


def test_what_is_in_effect_has_the_defaults_of_the_chosen_functions() -> None:
    values = config("loss_fn=cispo", "clip_high_threshold=4").algorithm_in_effect()
    assert (values["clip_low_threshold"], values["clip_high_threshold"]) == (0.0, 4.0)
    assert values["off_policy_correction"] == "geometric_mask"
    assert "dual_clip" not in values


def one(tokens: object, *, alpha: float = 1.0) -> None: ...
def two(tokens: object, other: object) -> None: ...
def catches_all(tokens: object, **settings: object) -> None: ...
def requires(tokens: object, *, alpha: float) -> None: ...


def surrounds(tokens: object, *, kl_coef: float = 0.1) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (one, None),
        (two, "has the signature (tokens: 'object', other: 'object') -> 'None'"),
        (catches_all, "has the signature (tokens: 'object', **settings: 'object') -> 'None'"),
        (requires, "needs a default for its keyword argument 'alpha'"),
        (3, "is 3, which is not a function"),
        (max, "is <built-in function max>, whose arguments cannot be read"),
        (
            surrounds,
            "has a keyword argument 'kl_coef', which is already a key of [algorithm] with another use; rename the "
            "argument",
        ),
    ],
)
def test_a_function_of_the_users_own_must_fit(function: object, problem: str | None) -> None:
    assert explain_misfit(function, ["kl_coef"]) == (
        problem.replace("'object'", "object").replace("'None'", "None") if problem else None
    )


def test_hyperparameters_are_keyword_arguments() -> None:
    assert read_defaults(one) == {"alpha": 1.0}


def test_a_teacher_alone_needs_no_group() -> None:
    alone = config(
        "advantage_method=none", "teacher=expert", "policies.expert.weights=base", "batch.group_size=1"
    ).algorithm
    assert (alone.teachers, alone.teacher_coef, alone.needs_every_token) == ({"": "expert"}, 1.0, True)


def test_each_kind_of_task_may_have_its_teacher() -> None:
    by_kind = config(
        "teacher.easy=one",
        "teacher.hard=two",
        "policies.one.weights=base",
        "policies.two.weights=runs/two",
        "curriculum.kind_field=kind",
    ).algorithm
    assert by_kind.teachers == {"easy": "one", "hard": "two"}
    assert by_kind.needs_every_token
