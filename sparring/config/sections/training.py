"""The sections about training: model, batch, algorithm, curriculum, optimizer, schedule, warm start and detectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

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
        description="Precision of the forward passes that sample and train; trained weights and the optimizer stay fp32. "
        "`auto` is bf16 if the hardware supports it, else fp32.",
    )
    base_precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description="Precision of the stored frozen weights under an adapter, which learner and engine share. Products "
        "in another precision convert them block by block. `auto` is the checkpoint's on CUDA, else fp32.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Device of the model; `auto` is CUDA if there is a GPU, else the CPU."
    )
    max_sequence_length: int = Field(
        default=2048, ge=8, description="Maximum tokens per episode, including the prompt."
    )
    trained_weights: Literal["lora", "full"] = Field(
        default="lora", description="`lora` trains an adapter, `full` every weight."
    )
    lora_rank: int = Field(default=32, ge=1, description="Rank of the adapter.")
    lora_alpha: int = Field(default=64, ge=1, description="The adapter's output is scaled by lora_alpha / lora_rank.")
    lora_layers: int | None = Field(
        default=None,
        ge=1,
        description="Number of layers, counted from the last, that get an adapter; fewer train faster. None: all layers.",
    )
    lora_targets: tuple[str, ...] = Field(
        strict=False,
        default=(),
        description="Linear layers that get an adapter. Empty: the defaults of the model's family (docs/models.md).",
    )
    lora_merged: bool | Literal["auto"] = Field(
        default="auto",
        description="Whether the engine merges the adapter into a copy of the adapted matrices: faster on a CPU, but more "
        "memory. `auto` is true on the CPU, false on CUDA. The learner never merges.",
    )


class BatchSection(Section):
    global_batch_size: int = Field(default=128, ge=1, description="Tasks per step.")
    group_size: int = Field(default=8, ge=1, description="Episodes per task.")
    refill_groups: int = Field(
        default=0, ge=0, description="Maximum groups that a step may run to replace groups with equal rewards."
    )


class AlgorithmSection(Section):
    """The functions that make up the algorithm, and their hyperparameters.

    The keys in `HYPERPARAMETERS` have the default None here. Their real defaults are in the signatures of the functions.
    """

    advantage_method: str = Field(
        default="group_based", description="A name in docs/algorithms.md, or `module:function`."
    )
    loss_fn: str = Field(default="ppo", description="A name in docs/algorithms.md, or `module:function`.")
    off_policy_correction: str | None = Field(
        default=None,
        description="A name in docs/algorithms.md. None: `none` if max_steps_off_policy is 0, else `geometric_mask` for a "
        "loss that never clips, and `token_tis` for other losses.",
    )
    loss_reduction: str = Field(default="trajectory_mean", description="A name in docs/algorithms.md.")
    policy_ratio: Literal["two_policy", "three_policy"] = Field(
        default="two_policy",
        description="Denominator of the loss's ratio: `two_policy`, the policy that sampled; `three_policy`, the policy before "
        "the step.",
    )
    num_passes: int = Field(default=1, ge=1, description="Optimizer steps per batch.")
    turn_rewards: Literal["refuse", "sum"] = Field(
        default="refuse",
        description="How a method with one advantage per trajectory handles rewards per turn: refuse or sum them.",
    )
    entropy_coef: FiniteFloat = Field(default=0.0, ge=0, description="Bonus for the entropy of sampled tokens.")
    kl_coef: FiniteFloat = Field(default=0.0, ge=0, description="Weight of the divergence from the base model.")
    kl_form: Literal["loss_k2", "loss_k3", "reward_k1"] = Field(
        default="loss_k2",
        description="Form of the divergence: a loss (k2, or k3 with the gradient of k2), or subtracted from the reward (k1).",
    )
    teacher: str | dict[str, str] | None = Field(
        default=None,
        description="Name of the frozen policy or the endpoint (vLLM) whose log-probabilities of the sampled tokens are a part "
        "of the advantages; or a name for each kind of task (`curriculum.kind_field`).",
    )
    teacher_coef: FiniteFloat = Field(
        default=1.0, gt=0, description="Factor of the teacher's part, which is added to the advantage of the reward."
    )
    options: dict[str, object] = Field(default_factory=dict, description="Keyword arguments of your own functions.")

    advantage_normalization: bool | None = Field(
        default=None, description="Whether advantages are divided by a standard deviation."
    )
    advantage_std: Literal["unbiased", "population"] | None = Field(
        default=None, description="Denominator of the standard deviation: n - 1 (`unbiased`) or n (`population`)."
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
        description="Bound of the loss of a token with negative advantage, as a multiple of that advantage; None: no bound.",
    )
    tv_low_threshold: FiniteFloat | None = Field(
        default=None, gt=0, le=1, description="How far the probability of a token with negative advantage may fall."
    )
    tv_high_threshold: FiniteFloat | None = Field(
        default=None, gt=0, le=1, description="How far the probability of a token with positive advantage may rise."
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
    def teachers(self) -> Mapping[str, str]:
        """The names of the teachers by kind of task. The key "" stands for all tasks."""
        if self.teacher is None:
            return {}
        return {"": self.teacher} if isinstance(self.teacher, str) else self.teacher

    @property
    def takes_reward_off(self) -> bool:
        """Whether the divergence from the base model is subtracted from the reward."""
        return self.kl_coef > 0 and self.kl_form == "reward_k1"

    @property
    def needs_every_token(self) -> bool:
        """Whether tokens of turns without an advantage also have a gradient."""
        is_plug_in = ":" in self.loss_fn  # the terms of a user's loss are not known
        has_divergence = bool(self.teachers) or (self.kl_coef > 0 and not self.takes_reward_off)
        return is_plug_in or self.entropy_coef > 0 or has_divergence

    def hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters that the recipe sets, with epsilons converted to thresholds, and the options."""
        values = {name: getattr(self, name) for name in HYPERPARAMETERS if getattr(self, name) is not None}
        for side, sign in (("low", -1), ("high", 1)):
            epsilon = values.pop(f"clip_{side}_epsilon", None)
            if epsilon is not None:
                values[f"clip_{side}_threshold"] = 1 + sign * epsilon
        return {**values, **self.options}


HYPERPARAMETERS = tuple(
    name
    for name, field in AlgorithmSection.model_fields.items()
    if field.default is None and name not in ("off_policy_correction", "teacher")
)
"""The keys of [algorithm] that only some functions read."""


class CurriculumSection(Section):
    select: Literal["all", "mixed", "frontier"] = Field(
        default="all",
        description="Which tasks run when it is their turn: `all` tasks; `mixed`, tasks that succeed sometimes; `frontier`, "
        "tasks whose success rate is near one half more often than others.",
    )
    easy_threshold: FiniteFloat = Field(
        default=1.0, gt=0, le=1, description="`mixed` leaves a task out if its success rate is at least this."
    )
    hard_threshold: FiniteFloat = Field(
        default=0.0, ge=0, lt=1, description="`mixed` leaves a task out if its success rate is at most this."
    )
    retry_share: FiniteFloat = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Probability that a left-out task runs anyway when it is its turn, because the policy changes.",
    )
    history_groups: int = Field(
        default=2,
        ge=1,
        description="Number of recent groups from which the success rate of a task is measured, and of recent steps for that of "
        "a kind.",
    )
    kind_field: str | None = Field(
        default=None,
        min_length=1,
        description="Field of the dataset that contains the kind of a task; kinds run in equal shares. A task that has not run "
        "before is selected by the success rate of its kind.",
    )
    kind_weights: dict[str, Annotated[FiniteFloat, Field(gt=0)]] = Field(
        default_factory=dict, description="Relative share of each kind; 1 for kinds that are not listed."
    )
    kind_block_size: int = Field(
        default=1,
        ge=1,
        description="Number of tasks of a kind that are offered in succession. If it is equal to batch.global_batch_size, a step "
        "has tasks of one kind. Above 1, `select` chooses whole blocks, by the success rate of their kind.",
    )


class OptimizerSection(Section):
    learning_rate: FiniteFloat = Field(default=4e-5, gt=0, le=1, description="Learning rate of the RL steps.")
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="Learning rate after the warm-up; `linear` and `cosine` fall to 0 at schedule.max_steps.",
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
        default=1.0, ge=0, description="Norm to which gradients are clipped; 0 disables clipping."
    )
    max_tokens_per_microbatch: int = Field(
        default=8192,
        ge=1,
        description="Maximum number of distinct tokens in one forward and backward pass; lower it to save memory.",
    )
    activation_checkpointing: bool | Literal["auto"] = Field(
        default="auto",
        description="Keep only the input of each layer for the backward pass, which computes the layer again: the same "
        "gradients with less memory, but a third more time. `auto` does so if the recipe does not fit otherwise "
        "(`sparring plan`).",
    )


class LearnerSection(Section):
    """The learner. `LEARNER_KEYS` lists the keys that each type reads."""

    type: Literal["here", "remote", "group", "tinker"] = Field(
        default="here",
        description="Where the learner runs: `here`, in this process; `remote`, in another process that serves it (`sparring "
        "learner`); `group`, in several such processes that train one model together; `tinker`, on a service that speaks the "
        "Tinker API.",
    )
    base_url: str | None = Field(default=None, description="Address of the remote learner or of the service.")
    service: Literal["tinker", "sagemaker"] = Field(
        default="tinker",
        description="The service: `tinker`, one that speaks the Tinker API at `base_url`; `sagemaker`, the training sessions of "
        "Amazon SageMaker, which were only tested against recorded shapes.",
    )
    role_arn: str | None = Field(default=None, description="ARN of the role that SageMaker's sessions assume.")
    model: str | None = Field(default=None, min_length=1, description="Name of the base model at the service.")
    base_urls: tuple[str, ...] = Field(
        strict=False,
        default=(),
        description="Addresses of the ranks of a group. Without them, the run starts the ranks on this machine.",
    )
    num_ranks: int = Field(default=2, ge=1, description="Number of ranks that the run starts on this machine.")
    min_ranks: int = Field(
        default=1, ge=1, description="The run goes on without ranks that end, as long as this many are left."
    )
    rank_timeout: FiniteFloat = Field(
        default=300.0, gt=0, description="Seconds that a rank waits for the others before it reports a failure."
    )
    shard_weights: bool = Field(
        default=False,
        description="Whether the ranks divide the model's weights (FSDP2) instead of having a copy each, for a model that does "
        "not fit one device. Running ranks have been started with or without `--shard-weights`.",
    )
    api_key_env: str | None = Field(
        default=None, description="Name of the environment variable that contains the learner's key."
    )


LEARNER_KEYS: Mapping[str, frozenset[str]] = {
    "here": frozenset({"type"}),
    "remote": frozenset({"type", "base_url", "api_key_env"}),
    "tinker": frozenset({"type", "service", "base_url", "model", "api_key_env", "role_arn"}),
    "group": frozenset({"type", "base_urls", "num_ranks", "min_ranks", "rank_timeout", "shard_weights", "api_key_env"}),
}
"""The keys of [learner] that each type reads."""


class ScheduleSection(Section):
    max_steps: int = Field(default=50, ge=0, description="Maximum number of RL steps.")
    max_epochs: int = Field(
        default=1, ge=1, description="Maximum number of passes over the training tasks, each in a new order."
    )
    val_every: int = Field(
        default=10, ge=0, description="Steps between validations; 0 validates only at the start and the end."
    )
    save_every: int = Field(default=10, ge=0, description="Steps between checkpoints; 0 saves only at the end.")
    keep_checkpoints: int = Field(
        default=2, ge=1, description="Number of recent checkpoints that are kept, in addition to the best one."
    )


class LimitsSection(Section):
    max_seconds: FiniteFloat | None = Field(
        default=None, gt=0, description="Maximum wall time of the RL steps; the running step is completed."
    )
    max_cost: FiniteFloat | None = Field(
        default=None,
        gt=0,
        description="Maximum cost of the RL steps, at `tracking.prices`; a step that would exceed it does not start.",
    )


class WarmStartSection(Section):
    demonstrations: str = Field(
        default="expert",
        description="`expert` (the environment's own), `module:function`, a .jsonl file of conversations, or the folder of a "
        "recording.",
    )
    num_demonstrations: int = Field(default=128, ge=1, description="Maximum number of conversations.")
    steps: int = Field(default=10, ge=1, description="Optimizer steps.")
    batch_size: int = Field(default=16, ge=1, description="Conversations per step.")
    learning_rate: FiniteFloat = Field(default=2e-4, gt=0, le=1, description="Learning rate of these steps.")
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="Schedule of the warm start; `linear` and `cosine` fall to 0 at its last step.",
    )
    control_steps: int | None = Field(
        default=None,
        ge=1,
        description="Steps by which `sparring control` continues the warm start, at a rate that falls to 0. None: "
        "at least `steps` steps, and enough to take longer than RL did.",
    )


class ChecksSection(Section):
    accept: tuple[str, ...] = Field(
        strict=False,
        default=(),
        description="Names of checks whose findings are accepted: they are shown, and do not stop a training.",
    )


class DetectorsSection(Section):
    reaction: Literal["report", "pause", "stop", "roll_back"] = Field(
        default="report", description="Reaction to an error that a detector finds during training (docs/detectors.md)."
    )
    off: tuple[str, ...] = Field(strict=False, default=(), description="Names of detectors that do not run.")
    scanners: tuple[str, ...] = Field(
        strict=False,
        default=(),
        description="List of `module:function`. Each is called with the name and the arguments (JSON text) of every tool call "
        "and returns a description of the exploit, or None.",
    )
