"""The sections of a recipe: every setting with its default, its bounds and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from sparring.algorithms import choice
from sparring.errors import ConfigProblem


class Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class RunSection(Section):
    name: str | None = Field(
        default=None, description="Folder name under `runs_dir`; None numbers runs after the recipe."
    )
    runs_dir: str = Field(default="runs", description="Where runs are kept, relative to the working directory.")
    seed: int = Field(default=0, ge=0, description="Seeds data order, sampling and initialisation.")
    num_threads: int | None = Field(default=None, ge=1, description="CPU threads of torch; None takes every core.")


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
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto")
    max_sequence_length: int = Field(default=2048, ge=8, description="Tokens of one episode, prompt included.")
    trained_weights: Literal["lora", "full"] = Field(default="lora")
    lora_rank: int = Field(default=32, ge=1)
    lora_alpha: int = Field(default=64, ge=1)
    lora_layers: int | None = Field(
        default=None, ge=1, description="Adapt only this many last layers; fewer train faster. None adapts all."
    )
    lora_targets: tuple[str, ...] = Field(
        strict=False, default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    )


class DataSection(Section):
    train: str | None = Field(
        default=None, description="Dataset file (.parquet, .jsonl, .json, .csv) or `module:function` returning Tasks."
    )
    validation: str | None = Field(default=None, description="As `train`; None splits it off the training data.")
    held_out: str | None = Field(default=None, description="As `train`; None splits it off the training data.")
    validation_fraction: FiniteFloat = Field(
        default=0.1, ge=0, lt=1, description="Share split off when `validation` is None."
    )
    held_out_fraction: FiniteFloat = Field(
        default=0.1, ge=0, lt=1, description="Share split off when `held_out` is None."
    )


class EnvironmentSection(Section):
    target: str | None = Field(
        default=None, description="`module:Class` of the Environment, looked up beside the recipe first."
    )
    max_turns: int = Field(default=8, ge=1)
    options: dict[str, object] = Field(default_factory=dict, description="Keyword arguments of the class.")
    workers: int = Field(
        default=0, ge=0,
        description="Processes that environments, reward and scorer run in; 0 runs them in the trainer's.",
    )  # fmt: skip
    worker_timeout: FiniteFloat = Field(
        default=60.0,
        gt=0,
        description="Seconds after which a worker that does not come back to its event loop is replaced.",
    )


class AgentSection(Section):
    """At most one of the first four; none of them plays the environment with the built-in tool loop."""

    function: str | None = Field(
        default=None,
        description="`module:function` of an agent: `async def play(task, session)`, which returns its reward.",
    )
    command: tuple[str, ...] | None = Field(
        default=None, strict=False, min_length=1, description="A program with its arguments, started for every episode."
    )
    url: str | None = Field(default=None, description="Address of a running agent that takes episodes by POST.")
    pull: bool = Field(default=False, description="Episodes wait for workers that poll the gateway for them.")
    max_turns: int | None = Field(default=None, ge=1, description="Policy calls of one episode at most.")
    gateway_host: str = Field(
        default="127.0.0.1",
        description="Address that the gateway listens on, for `url` and `pull`; 0.0.0.0 takes every one.",
    )
    gateway_port: int = Field(default=0, ge=0, le=65535, description="Of the same; 0 takes a free one.")
    tps_limit: FiniteFloat = Field(default=5.0, gt=0, description="Episodes a second that are started at `url`.")

    @property
    def is_foreign(self) -> bool:
        """Whether something else than the built-in tool loop decides."""
        return self.way is not None

    @property
    def way(self) -> str | None:
        """The key that says who plays, if one does."""
        return next(iter(self.ways()), None)

    def ways(self) -> list[str]:
        """The keys that say who plays; more than one is refused."""
        return [way for way in ("function", "command", "url", "pull") if getattr(self, way) not in (None, False)]


class PolicySection(Section):
    """A further policy of every episode, which agents and environments ask by its name."""

    role: Literal["trained", "frozen", "endpoint"] = Field(
        default="frozen",
        description="`trained`: the policy in training plays it too, and learns from it. `frozen`: weights of the same model "
        "that stay as they are. `endpoint`: an OpenAI-compatible one. Tokens of the last two are in no loss.",
    )
    weights: str = Field(
        default="base",
        description="Of a frozen one: `base`, the model as loaded; `warm_start`, as the warm start left it; or a run folder.",
    )
    base_url: str | None = Field(default=None, description="Of an endpoint, with its /v1.")
    model: str | None = Field(default=None, min_length=1, description="Name of the model at the endpoint.")
    api_key_env: str | None = Field(
        default=None, description="Name of the environment variable that holds the endpoint's key."
    )
    temperature: FiniteFloat = Field(
        default=1.0, ge=0, le=2, description="Of one that is not trained, in evaluations too."
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="Of one turn of one that is not trained. None: sampling.sampling_max_tokens."
    )


POLICY_KEYS: Mapping[str, frozenset[str]] = {
    "trained": frozenset({"role"}),
    "frozen": frozenset({"role", "weights", "temperature", "max_tokens"}),
    "endpoint": frozenset({"role", "base_url", "model", "api_key_env", "temperature", "max_tokens"}),
}
"""Keys of [policies.NAME] by the roles that read them."""


class RewardSection(Section):
    reward: str | None = Field(
        default=None, description="`module:function` of the training signal. None: the agent says what it earned."
    )
    scorer: str | None = Field(
        default=None,
        description="`module:function` of the judgement, in [0, 1]. None: evaluation says that it is not independent.",
    )


class BatchSection(Section):
    global_batch_size: int = Field(default=128, ge=1, description="Tasks a step.")
    group_size: int = Field(default=8, ge=1, description="Episodes a task.")
    refill_groups: int = Field(
        default=0, ge=0, description="Groups a step may play in place of such whose members all earned the same."
    )


class AlgorithmSection(Section):
    """The keys without a default here are knobs of the chosen functions, whose signatures hold their defaults."""

    advantage_method: str = Field(default="group_based", description="docs/algorithms.md, or `module:function`.")
    loss_fn: str = Field(default="ppo", description="docs/algorithms.md, or `module:function`.")
    off_policy_correction: str | None = Field(
        default=None,
        description="None: with max_steps_off_policy > 0 `token_tis`, or `geometric_mask` for a loss that never clips; "
        "else `none`.",
    )
    loss_reduction: str = Field(default="trajectory_mean")
    policy_ratio: Literal["two_policy", "three_policy"] = Field(
        default="two_policy",
        description="What the loss's ratio is taken against: the policy that sampled, or the one before the step.",
    )
    num_passes: int = Field(default=1, ge=1, description="Optimizer steps on one batch.")
    turn_rewards: Literal["refuse", "sum"] = Field(
        default="refuse", description="What a method that gives a trajectory one advantage makes of rewards per turn."
    )
    entropy_coef: FiniteFloat = Field(default=0.0, ge=0, description="Bonus for the entropy of sampled tokens.")
    kl_coef: FiniteFloat = Field(default=0.0, ge=0, description="Weight of the divergence from the base model.")
    kl_form: Literal["loss_k2", "loss_k3", "reward_k1"] = Field(
        default="loss_k2", description="As a loss (k2, or k3 with the gradient of k2), or taken off the reward (k1)."
    )
    options: dict[str, object] = Field(default_factory=dict, description="Keyword arguments of your own functions.")

    advantage_normalization: bool | None = None
    advantage_std: Literal["unbiased", "population"] | None = None
    gamma: FiniteFloat | None = Field(default=None, ge=0, le=1, description="Discount a turn.")
    pass_k: int | None = Field(default=None, ge=1)
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
    dual_clip: FiniteFloat | None = Field(default=None, gt=1)
    tv_low_threshold: FiniteFloat | None = Field(default=None, gt=0, le=1)
    tv_high_threshold: FiniteFloat | None = Field(default=None, gt=0, le=1)
    ratio_cap: FiniteFloat | None = Field(default=None, ge=1)
    correction_low: FiniteFloat | None = Field(default=None, ge=0, le=1)
    correction_high: FiniteFloat | None = Field(default=None, ge=1)
    loss_norm: FiniteFloat | None = Field(default=None, gt=0)

    @property
    def takes_reward_off(self) -> bool:
        """Whether the divergence from the base model is a part of the reward."""
        return self.kl_coef > 0 and self.kl_form == "reward_k1"

    @property
    def needs_every_token(self) -> bool:
        """Whether tokens without advantage have a gradient too."""
        is_own = ":" in self.loss_fn  # who knows what else it holds
        return is_own or self.entropy_coef > 0 or (self.kl_coef > 0 and not self.takes_reward_off)

    def knobs(self) -> dict[str, Any]:
        """What the recipe sets of them, epsilons as the thresholds that they mean, and the options."""
        values = {name: getattr(self, name) for name in ALGORITHM_KNOBS if getattr(self, name) is not None}
        for side, sign in (("low", -1), ("high", 1)):
            epsilon = values.pop(f"clip_{side}_epsilon", None)
            if epsilon is not None:
                values[f"clip_{side}_threshold"] = 1 + sign * epsilon
        return {**values, **self.options}


ALGORITHM_KNOBS = tuple(name for name, field in AlgorithmSection.model_fields.items() if field.default is None)[1:]
"""Keys of [algorithm] that the chosen functions read, or not."""


class CurriculumSection(Section):
    select: Literal["all", "mixed", "frontier"] = Field(
        default="all",
        description="Which tasks are played when their turn comes: all; `mixed`, those that succeed sometimes; "
        "`frontier`, the more often the nearer to half of their episodes succeed.",
    )
    easy_threshold: FiniteFloat = Field(
        default=1.0, gt=0, le=1, description="`mixed`: a task rests from this success on."
    )
    hard_threshold: FiniteFloat = Field(
        default=0.0, ge=0, lt=1, description="`mixed`: a task rests up to this success."
    )
    retry_share: FiniteFloat = Field(
        default=0.1, gt=0, lt=1, description="How often a resting task is played all the same, for the policy changes."
    )
    history_groups: int = Field(default=2, ge=1, description="Groups of a task that its success is taken from.")
    kind_field: str | None = Field(
        default=None,
        min_length=1,
        description="Field of the dataset that says what kind of task it is; kinds are played in equal shares.",
    )
    kind_weights: dict[str, FiniteFloat] = Field(
        default_factory=dict, description="Shares of kinds against each other; 1 for those not named."
    )


class SamplingSection(Section):
    temperature: FiniteFloat = Field(default=1.0, gt=0, le=2)
    sampling_top_p: FiniteFloat = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Below 1 is refused for training: the ratio would compare two distributions.",
    )
    sampling_max_tokens: int = Field(default=4096, ge=1, description="Of one turn.")


class OptimizerSection(Section):
    learning_rate: FiniteFloat = Field(default=4e-5, gt=0, le=1)
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="After the warm-up; the others fall to 0 at schedule.max_steps."
    )
    warmup_steps: int = Field(default=0, ge=0, description="Steps over which the rate rises to learning_rate.")
    lora_plus_lr_ratio: FiniteFloat = Field(
        default=1.0, ge=1, description="How much faster the B matrices of an adapter learn than the A matrices (LoRA+)."
    )
    adam_beta1: FiniteFloat = Field(default=0.9, ge=0, lt=1)
    adam_beta2: FiniteFloat = Field(default=0.95, ge=0, lt=1)
    adam_eps: FiniteFloat = Field(default=1e-8, gt=0)
    adam_weight_decay: FiniteFloat = Field(default=0.0, ge=0)
    adam_grad_clip_norm: FiniteFloat = Field(default=1.0, ge=0, description="0 does not clip.")
    max_tokens_per_microbatch: int = Field(default=8192, ge=1)


class ScheduleSection(Section):
    max_steps: int = Field(default=50, ge=0)
    max_epochs: int = Field(default=1, ge=1)
    max_seconds: FiniteFloat | None = Field(
        default=None, gt=0, description="Wall time of the RL steps; the step under way is finished."
    )
    val_every: int = Field(default=10, ge=0, description="0 validates only at the start and the end.")
    save_every: int = Field(default=10, ge=0, description="0 saves only at the end.")
    keep_checkpoints: int = Field(default=2, ge=1)


class RolloutSection(Section):
    rollout_max_concurrency: int = Field(default=96, ge=1)
    rollout_timeout: FiniteFloat = Field(default=600.0, gt=0, description="Seconds of one attempt.")
    rollout_max_retries: int = Field(default=3, ge=0)
    rollout_max_tokens: int | None = Field(
        default=None, ge=1, description="Sampled tokens of one episode at most, all its turns together."
    )
    max_lost_share: FiniteFloat = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Of the training episodes, lost for good (infrastructure, `client_error`, `reward_error`), that stops a run.",
    )
    max_steps_off_policy: int = Field(default=3, ge=0, le=10, description="0 is synchronous.")
    staleness_window: int = Field(
        default=1, ge=1, description="Groups that may overtake each other (W of the windowed FIFO)."
    )
    session_weights: Literal["latest", "pinned"] = Field(
        default="latest",
        description="`latest`: each turn uses the newest weights and re-reads the history after an update; "
        "`pinned`: an episode keeps those it started with.",
    )


class EngineSection(Section):
    """`ENGINE_KEYS` says which engine reads which key."""

    type: Literal["torch", "openai", "scripted"] = Field(
        default="torch",
        description="Who plays: the model here, an OpenAI-compatible endpoint, or a script. Only the first can be trained.",
    )
    base_url: str | None = Field(default=None, description="Of an endpoint, with its /v1.")
    model: str | None = Field(default=None, min_length=1, description="Name of the model at the endpoint.")
    api_key_env: str | None = Field(
        default=None, description="Name of the environment variable that holds the endpoint's key."
    )
    script: str | None = Field(
        default=None,
        description="A .jsonl file of the assistant's messages, or `module:function` from the messages so far to the next.",
    )
    max_running: int = Field(default=64, ge=1, description="Turns decoded together, or asked of an endpoint.")
    kv_cache_tokens: int = Field(default=65536, ge=64, description="Bound of the cache of keys and values, in tokens.")
    prefill_chunk_tokens: int = Field(default=2048, ge=16)
    deterministic: bool | None = Field(
        default=None, description="Rounds whose shapes follow from the seed. None: on when synchronous."
    )


ENGINE_KEYS: Mapping[str, frozenset[str]] = {
    "torch": frozenset({"type", "max_running", "kv_cache_tokens", "prefill_chunk_tokens", "deterministic"}),
    "openai": frozenset({"type", "base_url", "model", "api_key_env", "max_running"}),
    "scripted": frozenset({"type", "script"}),
}
"""Keys of [engine] by the engines that read them."""


class EvaluationSection(Section):
    val_num_tasks: int | None = Field(default=None, ge=1, description="None takes the whole validation split.")
    val_group_size: int = Field(default=1, ge=1)
    val_temperature: FiniteFloat = Field(default=0.0, ge=0, le=2)
    eval_num_tasks: int | None = Field(default=None, ge=1)
    eval_group_size: int = Field(default=1, ge=1)
    eval_temperature: FiniteFloat | None = Field(
        default=None, ge=0, le=2, description="At which policies are served; None: sampling.temperature."
    )
    pass_k_values: tuple[int, ...] | None = Field(
        default=None, strict=False, description="None: every k up to the episodes a task."
    )
    success_threshold: FiniteFloat = Field(
        default=1.0, ge=0, le=1, description="Score from which an episode is a success; scores are from 0 to 1."
    )
    allow_zero_baseline: bool = Field(default=False, description="Train although no baseline episode succeeded.")


class WarmStartSection(Section):
    demonstrations: str = Field(
        default="expert",
        description="`expert` (the environment's own), `module:function`, a .jsonl file of conversations, or the folder of a "
        "recording.",
    )
    num_demonstrations: int = Field(default=128, ge=1)
    steps: int = Field(default=10, ge=1)
    batch_size: int = Field(default=16, ge=1)
    learning_rate: FiniteFloat = Field(default=2e-4, gt=0, le=1)
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Of the warm start: the others fall to 0 at its last step."
    )
    control_steps: int | None = Field(
        default=None,
        ge=1,
        description="Steps by which `sparring control` continues it, at a rate that falls to 0; None: as many as last longer "
        "than RL did.",
    )


class DetectorsSection(Section):
    reaction: Literal["report", "pause", "stop", "roll_back"] = Field(
        default="report", description="What an error that a detector finds during training leads to; docs/detectors.md."
    )
    off: tuple[str, ...] = Field(strict=False, default=(), description="Names of detectors that are not asked.")
    scanners: tuple[str, ...] = Field(
        strict=False,
        default=(),
        description="`module:function` each, asked of every tool call: takes its name and its arguments as JSON text, and says "
        "in words what exploit it is, or None.",
    )


class TrackingSection(Section):
    mlflow: bool = Field(default=False)
    mlflow_uri: str | None = Field(default=None, description="None keeps a sqlite file in the run.")
    mlflow_experiment_name: str = Field(default="sparring")
    prometheus_address: str | None = Field(default=None, description="host:port that a Prometheus server reads.")
    prometheus_textfile_dir: str | None = Field(
        default=None, description="Folder of the node exporter's textfile collector."
    )
    webhook_url_env: str | None = Field(
        default=None, description="Name of the environment variable with the address that is told of the run."
    )
    prices: dict[str, FiniteFloat] = Field(
        default_factory=dict, description="By what has a price: see `sparring.prices`."
    )


class Config(Section):
    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    environment: EnvironmentSection = EnvironmentSection()
    agent: AgentSection = AgentSection()
    policies: dict[str, PolicySection] = Field(default_factory=dict)
    reward: RewardSection = RewardSection()
    batch: BatchSection = BatchSection()
    curriculum: CurriculumSection = CurriculumSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    sampling: SamplingSection = SamplingSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    rollout: RolloutSection = RolloutSection()
    engine: EngineSection = EngineSection()
    evaluation: EvaluationSection = EvaluationSection()
    warm_start: WarmStartSection | None = None
    detectors: DetectorsSection = DetectorsSection()
    tracking: TrackingSection = TrackingSection()

    @property
    def is_trainable(self) -> bool:
        """Whether the engine tells token ids, which training needs."""
        return self.engine.type == "torch"

    @property
    def plays_in_rounds(self) -> bool:
        """Whether the engine is deterministic: as the recipe says, else when training is synchronous."""
        if self.engine.deterministic is not None:
            return self.engine.deterministic
        # Rounds wait for every open session, and nobody knows how long a foreign agent thinks, or what an endpoint says.
        is_foreign = self.agent.is_foreign or any(policy.role == "endpoint" for policy in self.policies.values())
        return self.rollout.max_steps_off_policy == 0 and not is_foreign

    @property
    def serving_temperature(self) -> float:
        """At which a policy is evaluated as it is served: as the recipe says, else as it samples in training."""
        given = self.evaluation.eval_temperature
        return self.sampling.temperature if given is None else given

    @property
    def off_policy_correction(self) -> str:
        """Given, or by default: on whenever tokens may be older than the policy."""
        section = self.algorithm
        if section.off_policy_correction is not None:
            return section.off_policy_correction
        return choice.default_correction(section.loss_fn, max_steps_off_policy=self.rollout.max_steps_off_policy)

    def loss_config(self) -> dict[str, Any]:
        """What a learner is told of the loss: its knobs and all that stands around it."""
        section = self.algorithm
        return section.knobs() | {
            "off_policy_correction": self.off_policy_correction,
            "policy_ratio": section.policy_ratio,
            "entropy_coef": section.entropy_coef,
            "kl_coef": section.kl_coef,
            "kl_form": section.kl_form,
        }

    def algorithm_in_effect(self) -> dict[str, Any]:
        """The section with the correction that is chosen by default, and of the knobs those that anything reads."""
        section = self.algorithm
        values = section.model_dump(mode="json") | {"off_policy_correction": self.off_policy_correction}
        read = choice.in_effect(section, correction=self.off_policy_correction)
        return {
            key: read.get(key, value)
            for key, value in values.items()
            if key in read or key not in ALGORITHM_KNOBS or value is not None
        }

    def warnings(self) -> list[ConfigProblem]:
        """What works and is probably not meant."""
        found = choice.warnings(
            self.algorithm, correction=self.off_policy_correction, group_size=self.batch.group_size,
            max_steps_off_policy=self.rollout.max_steps_off_policy,
        )  # fmt: skip
        return [ConfigProblem(f"algorithm.{key}", message) for key, message in found]


def section_class(annotation: Any) -> type[Section]:
    if isinstance(annotation, type):
        return annotation
    return next(part for part in annotation.__args__ if isinstance(part, type) and issubclass(part, Section))
