"""The recipe: one frozen section per part, TOML in, every problem named at once.

Names and defaults are MTRL's wherever the concept exists there. Ranges refuse only what cannot work.
Override > recipe > default.
"""

from __future__ import annotations

import copy
import difflib
import math
import os
import re
import tomllib
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from sparring.algorithms import choice
from sparring.errors import ConfigError, ConfigProblem, UsageError


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


_POLICY_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MAIN_NAMES = ("policy", "default")

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
    eval_temperature: FiniteFloat = Field(default=0.0, ge=0, le=2)
    pass_k_values: tuple[int, ...] = Field(default=(1,), strict=False)
    success_threshold: FiniteFloat = Field(default=1.0)
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


class TrackingSection(Section):
    mlflow: bool = Field(default=False)
    mlflow_uri: str | None = Field(default=None, description="None keeps a sqlite file in the run.")
    mlflow_experiment_name: str = Field(default="sparring")


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
    tracking: TrackingSection = TrackingSection()

    @property
    def is_trainable(self) -> bool:
        """Whether the engine tells token ids, which training needs."""
        return self.engine.type == "torch"

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


def _section_class(annotation: Any) -> type[Section]:
    if isinstance(annotation, type):
        return annotation
    return next(part for part in annotation.__args__ if isinstance(part, type) and issubclass(part, Section))


_OF_TRAINING: Mapping[str, frozenset[str]] = {
    **{
        name: frozenset(_section_class(Config.model_fields[name].annotation).model_fields)
        for name in ("model", "batch", "algorithm", "optimizer", "schedule", "warm_start", "tracking")
    },
    "curriculum": frozenset(CurriculumSection.model_fields) - {"kind_field"},
    "sampling": frozenset({"temperature", "sampling_top_p"}),
    "rollout": frozenset({"max_steps_off_policy", "staleness_window", "session_weights"}),
}
"""Keys by section that only a model which is played and trained here reads."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe and apply `section.key=value` overrides.

    Raises UsageError when the file cannot be read, ConfigError with every problem at once.
    """
    return validate(read_recipe(path), overrides, source=str(path))


def key_from(variable: str | None) -> str | None:
    """What an environment variable holds, None without a name. Raises UsageError when it is not set."""
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key:
        raise UsageError(f"the environment variable {variable} shall hold the endpoint's key and is not set; set it.")
    return key


def untrainable(config: Config, source: str) -> ConfigError:
    """Why a recipe whose engine tells no token ids cannot be trained."""
    message = (
        f"is {config.engine.type!r}, which tells messages and no token ids: what is not known token for token is not trained. "
        "Evaluate it with `sparring eval`, or train with engine.type = 'torch'."
    )
    return ConfigError([ConfigProblem("engine.type", message)], source)


def read_recipe(path: Path) -> dict[str, Any]:
    """The recipe as nested tables. Raises UsageError when there is no such file or it is not TOML."""
    if path.is_dir():
        path = path / "recipe.toml"
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no recipe at {path}; give the path of a recipe.toml (`sparring init` makes one)."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Give the path of a TOML file.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path} is not valid TOML: {error}. Strings need quotes, sections look like [batch]."
        ) from error


def validate(recipe: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "the recipe") -> Config:
    """Override > recipe > default. Raises ConfigError with every problem at once."""
    problems: list[ConfigProblem] = []
    merged = copy.deepcopy(dict(recipe))
    for override in overrides:
        _apply(override, merged, problems)
    chosen = _engine_type(merged)
    if chosen in ("openai", "scripted") and _engine_type(recipe) == "torch":
        # A recipe that trains a model plays with another engine: what it says of its own is set aside, and nothing else.
        merged = _without_training(recipe, ENGINE_KEYS[chosen])
        for override in overrides:
            _apply(override, merged, [])
    wrong: set[str] = set()
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        problems += [_problem(detail) for detail in error.errors()]
        # Of a named policy everything is left out: [policies] is a section of sections.
        wrong = {".".join(str(part) for part in detail["loc"][:2]) for detail in error.errors()}
        config = _without(wrong, merged)
    problems += _conflicts(config, wrong)
    if problems:
        raise ConfigError(problems, source)
    return config


def resolved_toml(config: Config) -> str:
    """What recipe and overrides say, as TOML that `load_config` reads back to the same values.

    Defaults stay out: written down they would count as given, and be refused where nothing reads them.
    """
    tables = config.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    for section in ("environment", "algorithm"):
        if "options" in tables.get(section, {}):  # TOML has dates and infinities, JSON has not
            tables[section]["options"] = copy.deepcopy(dict(getattr(config, section).options))
    return tomli_w.dumps(tables)


def resolved_view(recipe: Mapping[str, Any], overrides: Sequence[str], config: Config) -> list[tuple[str, Any, str]]:
    """Every field as (key path, value, where it comes from: override, recipe or default)."""
    overridden = {override.partition("=")[0].strip() for override in overrides}
    rows = []
    sections = {
        name: (getattr(config, name), recipe.get(name, {})) for name in Config.model_fields if name != "policies"
    }
    for name, policy in config.policies.items():
        sections[f"policies.{name}"] = (policy, recipe.get("policies", {}).get(name, {}))
    for section_name, (section, given) in sections.items():
        if section is None:
            continue
        values = section.model_dump(mode="json")
        if section_name == "algorithm":
            values = config.algorithm_in_effect()
        for key, value in values.items():
            spellings = {key, key.replace("_threshold", "_epsilon")}
            paths = {f"{section_name}.{one}" for one in spellings}
            is_override = any(one in paths or one.startswith(tuple(f"{path}." for path in paths)) for one in overridden)
            origin = "override" if is_override else "default" if spellings.isdisjoint(given) else "recipe"
            rows.append((f"{section_name}.{key}", value, origin))
    return rows


def _apply(override: str, merged: dict[str, Any], problems: list[ConfigProblem]) -> None:
    path, separator, text = override.partition("=")
    path = path.strip()
    if not separator or path.count(".") < 1:
        problems.append(
            ConfigProblem(override, "is not of the form section.key=value; write, for example, batch.group_size=4.")
        )
        return
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word: strings need no quotes on the command line
    *tables, key = path.split(".")
    target = merged
    for table in tables:
        target = target.setdefault(table, {})
        if not isinstance(target, dict):
            problems.append(ConfigProblem(path, f"{table} is a value, not a section."))
            return
    target[key] = value


def _engine_type(tables: Mapping[str, Any]) -> Any:
    section = tables.get("engine", {})
    return section.get("type", "torch") if isinstance(section, Mapping) else None


def _without_training(recipe: Mapping[str, Any], engine_keys: Container[str]) -> dict[str, Any]:
    """A recipe without the keys that another engine than its own does not read."""
    kept: dict[str, Any] = {}
    for name, table in recipe.items():
        unread = _OF_TRAINING.get(name, frozenset())
        if isinstance(table, Mapping) and (unread or name == "engine"):
            table = {key: value for key, value in table.items() if key not in unread}
            if name == "engine":
                table = {key: value for key, value in table.items() if key in engine_keys}
            if not table:
                continue
        kept[name] = copy.deepcopy(table)
    return kept


def _problem(detail: Any) -> ConfigProblem:
    """One pydantic error in our words: the key path, the value, what is allowed, and the nearest key."""
    path = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return ConfigProblem(path, f"is not a known key{_nearest(path)}")
    if detail["type"] == "missing":
        return ConfigProblem(path, "is missing; this value has no default.")
    message = detail["msg"][0].lower() + detail["msg"][1:]
    return ConfigProblem(path, f"is {_shown(detail['input'])}, but {message.replace('input should', 'it should')}.")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _nearest(path: str) -> str:
    known = list(Config.model_fields)
    for section, field in Config.model_fields.items():
        # The keys of a named policy stand one level deeper.
        prefix = ".".join(path.split(".")[:2]) if path.startswith("policies.") and section == "policies" else section
        known += [f"{prefix}.{key}" for key in _section_class(field.annotation).model_fields]
    matches = difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    if not matches:
        key = path.rpartition(".")[2]
        same_key = [other for other in known if other.rpartition(".")[2] == key]
        matches = same_key or [
            other for other in known if difflib.get_close_matches(key, [other.rpartition(".")[2]], n=1)
        ]
    return f"; the nearest one is {matches[0]!r}." if matches else "; see docs/configuration.md for all keys."


def _without(wrong: Container[str], merged: Mapping[str, Any]) -> Config:
    """The configuration with defaults in place of what is wrong, so that rules between the rest can be judged.

    Sections with keys that have no default stay out: no rule reads them.
    """
    sections: dict[str, Any] = {}
    for name, table in merged.items():
        if name in wrong or name not in Config.model_fields or Config.model_fields[name].is_required():
            continue
        kept = {key: value for key, value in table.items() if f"{name}.{key}" not in wrong}
        annotation: Any = Config.model_fields[name].annotation
        sections[name] = TypeAdapter(annotation).validate_python(kept)
    return Config.model_construct(None, **sections)


def _conflicts(config: Config, wrong: Container[str] = ()) -> list[ConfigProblem]:
    """Rules between fields: what cannot work together, and what nothing in the chosen combination would read.

    A rule that reads a key of `wrong` is not judged.
    """
    found: list[ConfigProblem] = []

    def refuse(key: str, message: str, *reads: str) -> None:
        """`reads` are the other keys that the rule depends on."""
        keys = (key, *reads)
        if not any(path in wrong or path.partition(".")[0] in wrong for path in keys):
            found.append(ConfigProblem(key, message))

    def given(section: str, *keys: str) -> list[str]:
        return [key for key in keys if key in getattr(config, section).model_fields_set]

    batch, rollout, model, data = config.batch, config.rollout, config.model, config.data
    for key, message in _engine_problems(config):
        refuse(key, message, "engine.type")
    if not config.is_trainable:
        for section, keys in _OF_TRAINING.items():
            for key in given(section, *sorted(keys)) if getattr(config, section) is not None else ():
                message = f"is given, but engine.type = {config.engine.type!r} is not trained, so nothing reads it; leave it out."
                refuse(f"{section}.{key}", message, "engine.type")
    chosen = choice.refusals(
        config.algorithm, correction=config.off_policy_correction, group_size=batch.group_size,
        max_steps_off_policy=rollout.max_steps_off_policy, trained_weights=model.trained_weights,
    )  # fmt: skip
    for key, message, reads in chosen:
        first, *others = (path if "." in path else f"algorithm.{path}" for path in (key, *reads))
        refuse(first, message, *others)
    agent = config.agent
    ways = agent.ways()
    if len(ways) > 1:
        refuse(f"agent.{ways[1]}", f"is given beside agent.{ways[0]}, and one agent plays an episode; leave one out.")
    if agent.is_foreign:
        if given("environment", "max_turns"):
            message = f"is given, but agent.{ways[0]} plays, not the built-in tool loop; use agent.max_turns."
            refuse("environment.max_turns", message, f"agent.{ways[0]}")
        if config.environment.target is not None:
            message = f"is given, but agent.{ways[0]} brings a world of its own; leave one of them out."
            refuse("environment.target", message, f"agent.{ways[0]}")
    else:
        for key, section in (("target", "environment"), ("reward", "reward")):
            if getattr(getattr(config, section), key) is None:
                refuse(f"{section}.{key}", "is missing; this value has no default unless an [agent] plays.")
        for key in given("agent", "max_turns"):
            refuse(f"agent.{key}", "is given, but no agent is; use environment.max_turns for the built-in tool loop.")
    if agent.url is None and given("agent", "tps_limit"):
        refuse("agent.tps_limit", "is given, but agent.url is not; leave it out.", "agent.url")
    for key in given("agent", "gateway_host", "gateway_port"):
        if agent.way not in ("url", "pull"):
            message = "is given, but only agents of url and pull are elsewhere and need to know it; leave it out."
            refuse(f"agent.{key}", message, "agent.url", "agent.pull")
    if agent.url is not None and agent.gateway_host == "0.0.0.0":
        message = "is 0.0.0.0, which no agent could dial; give the address under which agent.url reaches this machine."
        refuse("agent.gateway_host", message, "agent.url")
    max_turns = agent.max_turns if agent.is_foreign else config.environment.max_turns
    max_tokens, turn_tokens = rollout.rollout_max_tokens, config.sampling.sampling_max_tokens
    if max_tokens is not None and max_turns is not None and max_tokens >= max_turns * turn_tokens:
        refuse(
            "rollout.rollout_max_tokens",
            f"is {max_tokens}, but {max_turns} turns of sampling.sampling_max_tokens = {turn_tokens} never sample more; make it "
            "smaller, or leave it out.",
            "sampling.sampling_max_tokens",
            f"{'agent' if agent.is_foreign else 'environment'}.max_turns",
        )
    for name, policy in config.policies.items():
        path = f"policies.{name}"
        if not _POLICY_NAME.fullmatch(name):
            refuse(path, "is no name for a policy; use lower-case letters, digits and _, a letter first.")
        if name in _MAIN_NAMES:
            refuse(path, f"has the name that clients call the policy in training by; use another than {_MAIN_NAMES}.")
        for key, message in _policy_problems(config, policy):
            refuse(f"{path}.{key}", message)
        if policy.role == "frozen" and policy.weights == "warm_start" and config.warm_start is None:
            message = "is 'warm_start', but the recipe has no [warm_start]; use 'base', or the folder of a run."
            refuse(f"{path}.weights", message, "warm_start")
        if policy.role == "frozen" and (policy.max_tokens or 0) >= model.max_sequence_length:
            refuse(
                f"{path}.max_tokens",
                f"is {policy.max_tokens}, but model.max_sequence_length = {model.max_sequence_length} holds the prompt too; "
                "make it smaller.",
                "model.max_sequence_length",
            )
    for name in config.algorithm.options:
        if name in AlgorithmSection.model_fields:
            message = f"is a key of [algorithm] itself: write algorithm.{name} = ... without options."
            refuse(f"algorithm.options.{name}", message)
    method = config.algorithm.advantage_method
    sees_more = config.algorithm.needs_every_token or config.algorithm.takes_reward_off
    if batch.refill_groups and (sees_more or method in choice.UNGROUPED or method in choice.PER_TURN or ":" in method):
        refuse(
            "batch.refill_groups",
            f"is {batch.refill_groups}, but with these settings of [algorithm] a group of equal total rewards may teach "
            "something all the same; leave it out, or use a method that compares totals and no further terms.",
            "algorithm.advantage_method",
        )
    select, unread = config.curriculum.select, "is given, but select = {!r} does not read it; leave it out, or use {}."
    for key in given("curriculum", "easy_threshold", "hard_threshold"):
        if select != "mixed":
            refuse(f"curriculum.{key}", unread.format(select, "'mixed'"), "curriculum.select")
    for key in given("curriculum", "retry_share", "history_groups"):
        if select == "all":
            refuse(f"curriculum.{key}", unread.format(select, "'mixed' or 'frontier'"), "curriculum.select")
    if config.curriculum.hard_threshold >= config.curriculum.easy_threshold:
        refuse(
            "curriculum.hard_threshold",
            f"is {config.curriculum.hard_threshold}, but tasks rest from easy_threshold = "
            f"{config.curriculum.easy_threshold} on, so none would be left; make it smaller.",
            "curriculum.easy_threshold",
        )
    if select != "all" and config.schedule.max_epochs == 1:
        refuse(
            "curriculum.select",
            f"is {select!r}, which goes by how a task went before, but schedule.max_epochs = 1 offers every task once; raise "
            "max_epochs, or leave select out.",
            "schedule.max_epochs",
        )
    if select != "all" and batch.group_size * config.curriculum.history_groups < 4:
        refuse(
            "curriculum.history_groups",
            f"is {config.curriculum.history_groups}, which with batch.group_size = {batch.group_size} is too little to tell how "
            "hard a task is: one lucky episode would put it to rest. Make their product at least 4.",
            "batch.group_size",
            "curriculum.select",
        )
    if config.curriculum.kind_weights and config.curriculum.kind_field is None:
        refuse(
            "curriculum.kind_weights",
            "is given, but kind_field is not, so all tasks are of one kind; name the field that tells them apart.",
            "curriculum.kind_field",
        )
    for kind, weight in config.curriculum.kind_weights.items():
        if weight <= 0:
            refuse(
                f"curriculum.kind_weights.{kind}",
                f"is {weight}; give a positive number, or leave tasks that shall not be trained out of data.train.",
            )
    if config.sampling.sampling_top_p < 1:
        refuse(
            "sampling.sampling_top_p",
            f"is {config.sampling.sampling_top_p}, but the learner's ratio is over the whole vocabulary, so training on a "
            "truncated distribution would be biased; use 1.0 and lower the temperature instead.",
        )
    if model.trained_weights == "full":
        message = "is given, but trained_weights = 'full' trains no adapter; leave it out."
        for key in given("model", "lora_rank", "lora_alpha", "lora_layers", "lora_targets"):
            refuse(f"model.{key}", message, "model.trained_weights")
        if given("optimizer", "lora_plus_lr_ratio"):
            refuse("optimizer.lora_plus_lr_ratio", message, "model.trained_weights")
    if config.optimizer.warmup_steps > config.schedule.max_steps > 0:
        refuse(
            "optimizer.warmup_steps",
            f"is {config.optimizer.warmup_steps}, but the run ends at schedule.max_steps = {config.schedule.max_steps}, so "
            "the rate would never reach learning_rate; make it smaller.",
            "schedule.max_steps",
        )
    waits = math.ceil((rollout.staleness_window - 1) / batch.global_batch_size)
    if waits > rollout.max_steps_off_policy:
        refuse(
            "rollout.staleness_window",
            f"is {rollout.staleness_window}, which lets a group wait {waits} steps, but max_steps_off_policy = "
            f"{rollout.max_steps_off_policy}; use a smaller window or a larger bound.",
            "rollout.max_steps_off_policy",
            "batch.global_batch_size",
        )
    if rollout.max_steps_off_policy == 0 and given("rollout", "session_weights"):
        refuse(
            "rollout.session_weights",
            "is given, but with max_steps_off_policy = 0 no weights change during play; leave it out.",
            "rollout.max_steps_off_policy",
        )
    if config.engine.deterministic and rollout.max_steps_off_policy > 0:
        refuse(
            "engine.deterministic",
            "is true, but asynchronous play depends on timing; set rollout.max_steps_off_policy = 0, or leave it out.",
            "rollout.max_steps_off_policy",
        )
    plays_in_rounds = config.engine.deterministic is not False and rollout.max_steps_off_policy == 0
    if plays_in_rounds and rollout.rollout_max_concurrency < batch.group_size:
        refuse(
            "rollout.rollout_max_concurrency",
            f"is {rollout.rollout_max_concurrency}, but deterministic play opens a whole group together "
            f"(group_size = {batch.group_size}); raise it, or set engine.deterministic = false.",
            "batch.group_size",
            "rollout.max_steps_off_policy",
            "engine.deterministic",
        )
    for split in ("validation", "held_out"):
        if getattr(data, split) is not None and given("data", f"{split}_fraction"):
            message = f"is given, but data.{split} names the tasks already; leave one of them out."
            refuse(f"data.{split}_fraction", message, f"data.{split}")
    if data.validation is None and data.held_out is None and data.validation_fraction + data.held_out_fraction >= 1:
        refuse(
            "data.validation_fraction",
            f"is {data.validation_fraction}, which with held_out_fraction = {data.held_out_fraction} leaves nothing to "
            "train on; make them less than 1 together.",
            "data.held_out_fraction",
            "data.validation",
            "data.held_out",
        )
    largest = max(config.evaluation.val_group_size, config.evaluation.eval_group_size)
    for k in config.evaluation.pass_k_values:
        if not 1 <= k <= largest:
            refuse(
                "evaluation.pass_k_values",
                f"holds {k}, but with {largest} episodes a task pass@{k} is not defined; raise eval_group_size.",
                "evaluation.val_group_size",
                "evaluation.eval_group_size",
            )
    if not config.tracking.mlflow:
        for key in given("tracking", "mlflow_uri", "mlflow_experiment_name"):
            message = "is given, but tracking.mlflow is false; set it to true, or leave this out."
            refuse(f"tracking.{key}", message, "tracking.mlflow")
    bounded = config.is_trainable and given("sampling", "sampling_max_tokens")
    if bounded and config.sampling.sampling_max_tokens >= model.max_sequence_length:
        refuse(
            "sampling.sampling_max_tokens",
            f"is {config.sampling.sampling_max_tokens}, but model.max_sequence_length = {model.max_sequence_length} holds "
            "the prompt too; make it smaller.",
            "model.max_sequence_length",
        )
    return found


def _policy_problems(config: Config, policy: PolicySection) -> list[tuple[str, str]]:
    """What is wrong with a further policy by itself: (key, message)."""
    found = []
    for key in sorted(policy.model_fields_set - POLICY_KEYS[policy.role]):
        message = f"is given, but role = {policy.role!r} does not read it; leave it out."
        if policy.role == "trained" and key in POLICY_KEYS["frozen"]:
            message = "is given, but role = 'trained' plays with what is in training, as [sampling] says; leave it out."
        found.append((key, message))
    if policy.role != "endpoint" and not config.is_trainable:
        found.append(("role", f"is {policy.role!r}, which takes a model that is loaded here; use 'endpoint'."))
    if policy.role == "endpoint":
        found += [
            (key, "is missing; role = 'endpoint' needs it.")
            for key in ("base_url", "model")
            if not getattr(policy, key)
        ]
        found += endpoint_problems(base_url=policy.base_url, api_key_env=policy.api_key_env)
    return found


def _engine_problems(config: Config) -> list[tuple[str, str]]:
    """Keys of [engine] that the chosen one does not read, or cannot do without."""
    engine = config.engine
    found: list[tuple[str, str]] = []
    for key in sorted(engine.model_fields_set - ENGINE_KEYS[engine.type]):
        readers = " or ".join(repr(name) for name, keys in ENGINE_KEYS.items() if key in keys)
        found.append((
            f"engine.{key}",
            f"is given, but engine.type = {engine.type!r} does not read it; leave it out, or set engine.type to {readers}.",
        ))  # fmt: skip
    needed = {"openai": ("base_url", "model"), "scripted": ("script",)}.get(engine.type, ())
    for key in needed:
        if getattr(engine, key) is None:
            found.append((f"engine.{key}", f"is missing; engine.type = {engine.type!r} needs it."))
    told = endpoint_problems(base_url=engine.base_url, api_key_env=engine.api_key_env)
    return found + [(f"engine.{key}", message) for key, message in told]


def endpoint_problems(*, base_url: str | None, api_key_env: str | None) -> list[tuple[str, str]]:
    """What is wrong with how an endpoint is named: the key and a message."""
    found: list[tuple[str, str]] = []
    if base_url is not None and not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", base_url):
        # Keys are not shown.
        shown = "an address with a user or key in it" if "@" in base_url else repr(base_url)
        message = f"is {shown}; give one like https://HOST/v1, and name the variable that holds the key apart."
        found.append(("base_url", message))
    if api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", api_key_env):
        message = "is no name of an environment variable; put the key into one, and give its name here, never the key."
        found.append(("api_key_env", message))
    return found
