"""The recipe: one frozen section per part, TOML in, every problem named at once.

Names and defaults are MTRL's wherever the concept exists there. Ranges refuse only what cannot work.
Override > recipe > default.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from sparring.errors import ConfigError, ConfigProblem, UsageError

CLIP_BOUNDS: dict[str, tuple[float, float]] = {"ppo": (0.8, 1.2), "cispo": (0.0, 5.0)}
"""Default (low, high) of the losses that clip, as absolute probability ratios."""


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
    target: str = Field(..., description="`module:Class` of the Environment, looked up beside the recipe first.")
    max_turns: int = Field(default=8, ge=1)
    options: dict[str, object] = Field(default_factory=dict, description="Keyword arguments of the class.")


class RewardSection(Section):
    reward: str = Field(..., description="`module:function` of the training signal.")
    scorer: str | None = Field(
        default=None,
        description="`module:function` of the judgement, in [0, 1]. None: evaluation says that it is not independent.",
    )


class BatchSection(Section):
    global_batch_size: int = Field(default=128, ge=1, description="Tasks a step.")
    group_size: int = Field(default=8, ge=1, description="Episodes a task.")


class AlgorithmSection(Section):
    advantage_method: Literal["group_based", "rloo"] = Field(default="group_based")
    advantage_normalization: bool = Field(
        default=True, description="Divide by the group's standard deviation (`group_based`)."
    )
    loss_fn: Literal["importance_sampling", "ppo", "cispo"] = Field(default="ppo")
    clip_low_threshold: FiniteFloat | None = Field(
        default=None, ge=0, le=1, description="Absolute lower bound of the probability ratio."
    )
    clip_high_threshold: FiniteFloat | None = Field(
        default=None, ge=1, description="Absolute upper bound of the probability ratio."
    )
    loss_reduction: Literal["token_mean", "trajectory_mean", "sum"] = Field(default="trajectory_mean")


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
    max_running: int = Field(default=64, ge=1, description="Turns decoded together.")
    kv_cache_tokens: int = Field(default=65536, ge=64, description="Bound of the cache of keys and values, in tokens.")
    prefill_chunk_tokens: int = Field(default=2048, ge=16)
    deterministic: bool | None = Field(
        default=None, description="Rounds whose shapes follow from the seed. None: on when synchronous."
    )


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
        description="`expert` (the environment's own), `module:function`, or a .jsonl file of demonstrations.",
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
    environment: EnvironmentSection
    reward: RewardSection
    batch: BatchSection = BatchSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    sampling: SamplingSection = SamplingSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    rollout: RolloutSection = RolloutSection()
    engine: EngineSection = EngineSection()
    evaluation: EvaluationSection = EvaluationSection()
    warm_start: WarmStartSection | None = None
    tracking: TrackingSection = TrackingSection()

    def loss_config(self) -> dict[str, float]:
        """What the chosen loss reads: its clip bounds, given or default."""
        default = CLIP_BOUNDS.get(self.algorithm.loss_fn)
        if default is None:
            return {}
        low, high = self.algorithm.clip_low_threshold, self.algorithm.clip_high_threshold
        return {
            "clip_low_threshold": default[0] if low is None else low,
            "clip_high_threshold": default[1] if high is None else high,
        }


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe and apply `section.key=value` overrides.

    Raises UsageError when the file cannot be read, ConfigError with every problem at once.
    """
    return validate(read_recipe(path), overrides, source=str(path))


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
    merged = {name: dict(table) if isinstance(table, dict) else table for name, table in recipe.items()}
    for override in overrides:
        _apply(override, merged, problems)
    wrong: set[str] = set()
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        problems += [_problem(detail) for detail in error.errors()]
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
    return tomli_w.dumps(tables)


def resolved_view(recipe: Mapping[str, Any], overrides: Sequence[str], config: Config) -> list[tuple[str, Any, str]]:
    """Every field as (key path, value, where it comes from: override, recipe or default)."""
    overridden = {override.partition("=")[0].strip() for override in overrides}
    rows = []
    for section_name in Config.model_fields:
        section = getattr(config, section_name)
        if section is None:
            continue
        given = recipe.get(section_name, {})
        for key, value in section.model_dump(mode="json").items():
            path = f"{section_name}.{key}"
            origin = "override" if path in overridden else "recipe" if key in given else "default"
            rows.append((path, value, origin))
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
        known += [f"{section}.{key}" for key in _section_class(field.annotation).model_fields]
    matches = difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    if not matches:
        key = path.rpartition(".")[2]
        same_key = [other for other in known if other.rpartition(".")[2] == key]
        matches = same_key or [
            other for other in known if difflib.get_close_matches(key, [other.rpartition(".")[2]], n=1)
        ]
    return f"; the nearest one is {matches[0]!r}." if matches else "; see docs/configuration.md for all keys."


def _section_class(annotation: Any) -> type[Section]:
    if isinstance(annotation, type):
        return annotation
    return next(part for part in annotation.__args__ if isinstance(part, type) and issubclass(part, Section))


def _without(wrong: Container[str], merged: Mapping[str, Any]) -> Config:
    """The configuration with defaults in place of what is wrong, so that rules between the rest can be judged.

    Sections with keys that have no default stay out: no rule reads them.
    """
    sections: dict[str, Section] = {}
    for name, table in merged.items():
        if name in wrong or name not in Config.model_fields or Config.model_fields[name].is_required():
            continue
        kept = {key: value for key, value in table.items() if f"{name}.{key}" not in wrong}
        sections[name] = _section_class(Config.model_fields[name].annotation).model_validate(kept)
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

    algorithm, batch, rollout, model, data = config.algorithm, config.batch, config.rollout, config.model, config.data
    if algorithm.loss_fn not in CLIP_BOUNDS:
        for key in given("algorithm", "clip_low_threshold", "clip_high_threshold"):
            refuse(
                f"algorithm.{key}",
                f"is given, but loss_fn = {algorithm.loss_fn!r} does not clip; leave it out.",
                "algorithm.loss_fn",
            )
    if algorithm.advantage_method != "group_based" and given("algorithm", "advantage_normalization"):
        refuse(
            "algorithm.advantage_normalization",
            f"is given, but advantage_method = {algorithm.advantage_method!r} does not normalize; leave it out.",
            "algorithm.advantage_method",
        )
    if batch.group_size < 2:
        refuse(
            "batch.group_size",
            f"is {batch.group_size}, but {algorithm.advantage_method!r} compares the episodes of a group; use at least 2.",
            "algorithm.advantage_method",
        )
    if algorithm.loss_fn == "cispo" and (algorithm.clip_low_threshold or 0) > 0:
        refuse(
            "algorithm.clip_low_threshold",
            f"is {algorithm.clip_low_threshold} with loss_fn = 'cispo', which keeps full weight on tokens that the policy "
            "already left; use 0, or loss_fn = 'ppo'.",
            "algorithm.loss_fn",
        )
    if algorithm.clip_low_threshold == algorithm.clip_high_threshold == 1:
        refuse(
            "algorithm.clip_high_threshold",
            "is 1, as clip_low_threshold is, which leaves no room for the probability ratio; use, for example, 0.8 and 1.2.",
            "algorithm.clip_low_threshold",
        )
    if config.sampling.sampling_top_p < 1:
        refuse(
            "sampling.sampling_top_p",
            f"is {config.sampling.sampling_top_p}, but the learner's ratio is over the whole vocabulary, so training on a "
            "truncated distribution would be biased; use 1.0 and lower the temperature instead.",
        )
    if model.trained_weights == "full":
        for key in given("model", "lora_rank", "lora_alpha", "lora_layers", "lora_targets"):
            message = "is given, but trained_weights = 'full' trains no adapter; leave it out."
            refuse(f"model.{key}", message, "model.trained_weights")
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
    if config.sampling.sampling_max_tokens >= model.max_sequence_length and given("sampling", "sampling_max_tokens"):
        refuse(
            "sampling.sampling_max_tokens",
            f"is {config.sampling.sampling_max_tokens}, but model.max_sequence_length = {model.max_sequence_length} holds "
            "the prompt too; make it smaller.",
            "model.max_sequence_length",
        )
    return found
