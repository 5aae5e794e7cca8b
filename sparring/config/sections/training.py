"""The sections about training: model, batch, algorithm, curriculum, optimizer, schedule, warm start and detectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, FiniteFloat

from sparring.config.sections.base import Section


class ModelSection(Section):
    name: str = Field(
        default="smollm2-135m-instruct",
        description="`smollm2-135m-instruct` (embedded), a folder, a Hugging Face id, "
        "or `module:function` that takes a seed and returns (model, tokenizer).",
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description="Of the forward passes that sample and train; trained weights and the optimizer stay fp32. "
        "`auto` is bf16 where the hardware has it, else fp32.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where the model runs; `auto` is CUDA where there is a GPU."
    )
    max_sequence_length: int = Field(default=2048, ge=8, description="Most tokens of one episode, prompt included.")
    trained_weights: Literal["lora", "full"] = Field(
        default="lora", description="`lora` trains an adapter, `full` every weight."
    )
    lora_rank: int = Field(default=32, ge=1, description="Rank of the adapter.")
    lora_alpha: int = Field(default=64, ge=1, description="The adapter's output is scaled by lora_alpha / lora_rank.")
    lora_layers: int | None = Field(
        default=None, ge=1, description="Adapt only this many last layers; fewer train faster. None adapts all."
    )
    lora_targets: tuple[str, ...] = Field(
        strict=False,
        default=(),
        description="Linear layers that get an adapter; empty: those of the model's family (docs/models.md).",
    )


class BatchSection(Section):
    global_batch_size: int = Field(default=128, ge=1, description="Tasks a step.")
    group_size: int = Field(default=8, ge=1, description="Episodes a task.")
    refill_groups: int = Field(
        default=0, ge=0, description="Most groups a step may run to replace groups of equal rewards."
    )


class AlgorithmSection(Section):
    """Keys without a default here are hyperparameters of the chosen functions, whose signatures have their defaults."""

    advantage_method: str = Field(default="group_based", description="docs/algorithms.md, or `module:function`.")
    loss_fn: str = Field(default="ppo", description="docs/algorithms.md, or `module:function`.")
    off_policy_correction: str | None = Field(
        default=None,
        description="None: with max_steps_off_policy > 0 `token_tis`, or `geometric_mask` for a loss that never clips; "
        "else `none`.",
    )
    loss_reduction: str = Field(default="trajectory_mean", description="docs/algorithms.md.")
    policy_ratio: Literal["two_policy", "three_policy"] = Field(
        default="two_policy",
        description="What the loss's ratio is taken against: the policy that sampled, or the one before the step.",
    )
    num_passes: int = Field(default=1, ge=1, description="Optimizer steps on one batch.")
    turn_rewards: Literal["refuse", "sum"] = Field(
        default="refuse",
        description="How rewards per turn are handled by a method that gives a trajectory one advantage.",
    )
    entropy_coef: FiniteFloat = Field(default=0.0, ge=0, description="Bonus for the entropy of sampled tokens.")
    kl_coef: FiniteFloat = Field(default=0.0, ge=0, description="Weight of the divergence from the base model.")
    kl_form: Literal["loss_k2", "loss_k3", "reward_k1"] = Field(
        default="loss_k2",
        description="As a loss (k2, or k3 with the gradient of k2), or subtracted from the reward (k1).",
    )
    options: dict[str, object] = Field(default_factory=dict, description="Keyword arguments of your own functions.")

    advantage_normalization: bool | None = Field(
        default=None, description="Whether advantages are divided by a standard deviation."
    )
    advantage_std: Literal["unbiased", "population"] | None = Field(
        default=None, description="Standard deviation with n - 1 or with n in its denominator."
    )
    gamma: FiniteFloat | None = Field(default=None, ge=0, le=1, description="Discount per turn.")
    pass_k: int | None = Field(default=None, ge=1, description="The k of `pass_at_k`.")
    clip_low_threshold: FiniteFloat | None = Field(
        default=None, ge=0, le=1, description="Absolute lower bound of the probability ratio."
    )
    clip_high_threshold: FiniteFloat | None = Field(
        default=None, ge=1, description="Absolute upper bound of the probability ratio."
    )
    clip_low_epsilon: FiniteFloat | None = Field(
        default=None, ge=0, le=1, description="Other spelling of clip_low_threshold: its distance below 1."
    )
    clip_high_epsilon: FiniteFloat | None = Field(
        default=None, ge=0, description="Other spelling of clip_high_threshold: its distance above 1."
    )
    dual_clip: FiniteFloat | None = Field(
        default=None,
        gt=1,
        description="Most that a token of negative advantage may cost, in advantages; None is no bound.",
    )
    tv_low_threshold: FiniteFloat | None = Field(
        default=None, gt=0, le=1, description="How far the probability of a token of negative advantage may fall."
    )
    tv_high_threshold: FiniteFloat | None = Field(
        default=None, gt=0, le=1, description="How far the probability of a token of positive advantage may rise."
    )
    ratio_cap: FiniteFloat | None = Field(default=None, ge=1, description="Largest weight of a token in `dppo_tv`.")
    correction_low: FiniteFloat | None = Field(
        default=None, ge=0, le=1, description="Lower bound of an off-policy correction's weight."
    )
    correction_high: FiniteFloat | None = Field(
        default=None, ge=1, description="Upper bound of an off-policy correction's weight."
    )
    loss_norm: FiniteFloat | None = Field(default=None, gt=0, description="The constant of `sequence_sum_norm`.")

    @property
    def takes_reward_off(self) -> bool:
        """Whether the divergence from the base model is subtracted from the reward."""
        return self.kl_coef > 0 and self.kl_form == "reward_k1"

    @property
    def needs_every_token(self) -> bool:
        """Whether tokens without advantage have a gradient too."""
        is_plug_in = ":" in self.loss_fn  # its terms are not known
        return is_plug_in or self.entropy_coef > 0 or (self.kl_coef > 0 and not self.takes_reward_off)

    def hyperparameters(self) -> dict[str, Any]:
        """Return those that the recipe sets, epsilons as thresholds, and the options."""
        values = {name: getattr(self, name) for name in HYPERPARAMETERS if getattr(self, name) is not None}
        for side, sign in (("low", -1), ("high", 1)):
            epsilon = values.pop(f"clip_{side}_epsilon", None)
            if epsilon is not None:
                values[f"clip_{side}_threshold"] = 1 + sign * epsilon
        return {**values, **self.options}


HYPERPARAMETERS = tuple(name for name, field in AlgorithmSection.model_fields.items() if field.default is None)[1:]
"""Keys of [algorithm] that only some of the functions read."""


class CurriculumSection(Section):
    select: Literal["all", "mixed", "frontier"] = Field(
        default="all",
        description="Which tasks run when their turn comes: all; `mixed`, those that succeed sometimes; "
        "`frontier`, more often the nearer their success rate is to one half.",
    )
    easy_threshold: FiniteFloat = Field(
        default=1.0, gt=0, le=1, description="`mixed`: leave a task out from this success rate on."
    )
    hard_threshold: FiniteFloat = Field(
        default=0.0, ge=0, lt=1, description="`mixed`: leave a task out up to this success rate."
    )
    retry_share: FiniteFloat = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="How often a task that is left out runs anyway, because the policy changes.",
    )
    history_groups: int = Field(
        default=2, ge=1, description="Groups of a task from which its success rate is measured."
    )
    kind_field: str | None = Field(
        default=None,
        min_length=1,
        description="Field of the dataset that contains the kind of a task; kinds run in equal shares.",
    )
    kind_weights: dict[str, FiniteFloat] = Field(
        default_factory=dict, description="Relative shares of kinds; 1 for kinds that are not named."
    )


class OptimizerSection(Section):
    learning_rate: FiniteFloat = Field(default=4e-5, gt=0, le=1, description="Learning rate of the RL steps.")
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="After the warm-up; the others fall to 0 at schedule.max_steps."
    )
    warmup_steps: int = Field(default=0, ge=0, description="Steps over which the rate rises to learning_rate.")
    lora_plus_lr_ratio: FiniteFloat = Field(
        default=1.0, ge=1, description="How much faster the B matrices of an adapter learn than the A matrices (LoRA+)."
    )
    adam_beta1: FiniteFloat = Field(default=0.9, ge=0, lt=1, description="Decay of the first moment.")
    adam_beta2: FiniteFloat = Field(default=0.95, ge=0, lt=1, description="Decay of the second moment.")
    adam_eps: FiniteFloat = Field(default=1e-8, gt=0, description="Added to the denominator of the update.")
    adam_weight_decay: FiniteFloat = Field(default=0.0, ge=0, description="Decoupled weight decay.")
    adam_grad_clip_norm: FiniteFloat = Field(
        default=1.0, ge=0, description="Norm to which gradients are clipped; 0 does not clip."
    )
    max_tokens_per_microbatch: int = Field(
        default=8192,
        ge=1,
        description="Most distinct tokens in one forward and backward pass; lower it to save memory.",
    )


class LearnerSection(Section):
    """`LEARNER_KEYS` has the keys that each learner reads."""

    type: Literal["here", "remote"] = Field(
        default="here",
        description="Where the learner runs: `here` is this process, `remote` another one that serves it (`sparring learner`).",
    )
    base_url: str | None = Field(default=None, description="Address of the remote learner.")
    api_key_env: str | None = Field(
        default=None, description="Name of the environment variable that holds the learner's key."
    )


LEARNER_KEYS: Mapping[str, frozenset[str]] = {
    "here": frozenset({"type"}),
    "remote": frozenset({"type", "base_url", "api_key_env"}),
}
"""Keys of [learner] by the learners that read them."""


class ScheduleSection(Section):
    max_steps: int = Field(default=50, ge=0, description="Most RL steps.")
    max_epochs: int = Field(default=1, ge=1, description="Most passes over the training tasks, each in a new order.")
    val_every: int = Field(
        default=10, ge=0, description="Steps between validations; 0 validates only at the start and the end."
    )
    save_every: int = Field(default=10, ge=0, description="Steps between checkpoints; 0 saves only at the end.")
    keep_checkpoints: int = Field(
        default=2, ge=1, description="Numbered checkpoints that are kept, in addition to the best one."
    )


class LimitsSection(Section):
    max_seconds: FiniteFloat | None = Field(
        default=None, gt=0, description="Wall time of the RL steps; the running step is completed."
    )
    max_cost: FiniteFloat | None = Field(
        default=None,
        gt=0,
        description="Most money of the RL steps, at `tracking.prices`; no step starts that would exceed it.",
    )


class WarmStartSection(Section):
    demonstrations: str = Field(
        default="expert",
        description="`expert` (the environment's own), `module:function`, a .jsonl file of conversations, or the folder of a "
        "recording.",
    )
    num_demonstrations: int = Field(default=128, ge=1, description="Most conversations.")
    steps: int = Field(default=10, ge=1, description="Optimizer steps.")
    batch_size: int = Field(default=16, ge=1, description="Conversations a step.")
    learning_rate: FiniteFloat = Field(default=2e-4, gt=0, le=1, description="Learning rate of these steps.")
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Of the warm start: the others fall to 0 at its last step."
    )
    control_steps: int | None = Field(
        default=None,
        ge=1,
        description="Steps by which `sparring control` continues it, at a rate that falls to 0; None: as many as take longer "
        "than RL did.",
    )


class DetectorsSection(Section):
    reaction: Literal["report", "pause", "stop", "roll_back"] = Field(
        default="report", description="What an error that a detector finds during training leads to; docs/detectors.md."
    )
    off: tuple[str, ...] = Field(strict=False, default=(), description="Names of detectors that do not run.")
    scanners: tuple[str, ...] = Field(
        strict=False,
        default=(),
        description="`module:function` each, called with the name and the arguments (JSON text) of every tool call; returns the "
        "exploit in words, or None.",
    )
