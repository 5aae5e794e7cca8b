"""The recipe: one frozen section per part, TOML in, every problem named at once.

Names and defaults are MTRL's wherever the concept exists there. Ranges refuse only what cannot work.
Override > recipe > default.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat


class Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class RunSection(Section):
    name: str | None = Field(None, description="Folder name under `runs_dir`; None numbers runs after the recipe.")
    runs_dir: str = Field("runs", description="Where runs are kept, relative to the working directory.")
    seed: int = Field(0, ge=0, description="Seeds data order, sampling and initialisation.")
    num_threads: int | None = Field(None, ge=1, description="CPU threads of torch; None takes every core.")


class ModelSection(Section):
    name: str = Field("smollm2-135m-instruct", description="`smollm2-135m-instruct` (embedded), a local path, or a Hugging Face id; or `module:function` that returns (model, tokenizer).")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="`auto` is bf16 where the hardware has it, else fp32. Of the forward passes that sample and train; trained weights and the optimizer stay fp32.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto")
    max_sequence_length: int = Field(2048, ge=8, description="Tokens of one episode, prompt included.")
    trained_weights: Literal["lora", "full"] = Field("lora")
    lora_rank: int = Field(32, ge=1)
    lora_alpha: float = Field(64, gt=0)
    lora_targets: tuple[str, ...] = Field(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))


class DataSection(Section):
    train: str | None = Field(None, description="Dataset file (.parquet, .jsonl, .json, .csv) or `module:function` returning Tasks.")
    validation: str | None = Field(None, description="As `train`; None splits it off the training data.")
    held_out: str | None = Field(None, description="As `train`; None splits it off the training data.")
    validation_fraction: FiniteFloat = Field(0.1, ge=0, lt=1, description="Share split off when `validation` is None.")
    held_out_fraction: FiniteFloat = Field(0.1, ge=0, lt=1, description="Share split off when `held_out` is None.")


class EnvironmentSection(Section):
    target: str = Field(..., description="`module:Class` of the Environment, looked up beside the recipe first.")
    max_turns: int = Field(8, ge=1)
    options: dict[str, object] = Field(default_factory=dict, description="Keyword arguments of the class.")


class RewardSection(Section):
    reward: str = Field(..., description="`module:function` of the training signal.")
    scorer: str | None = Field(None, description="`module:function` of the judgement, in [0, 1]. None: evaluation says that it is not independent.")


class BatchSection(Section):
    global_batch_size: int = Field(128, ge=1, description="Tasks a step.")
    group_size: int = Field(8, ge=1, description="Episodes a task.")


class AlgorithmSection(Section):
    advantage_method: str = Field("group_based")
    advantage_normalization: bool = Field(True, description="Divide by the group's standard deviation (`group_based`).")
    loss_fn: str = Field("ppo")
    clip_low_threshold: FiniteFloat | None = Field(None, ge=0, le=1, description="Absolute lower bound of the probability ratio.")
    clip_high_threshold: FiniteFloat | None = Field(None, ge=1, description="Absolute upper bound of the probability ratio.")
    loss_reduction: Literal["token_mean", "trajectory_mean", "sum"] = Field("trajectory_mean")


class SamplingSection(Section):
    temperature: FiniteFloat = Field(1.0, gt=0, le=2)
    sampling_top_p: FiniteFloat = Field(1.0, gt=0, le=1, description="Below 1 is refused for training: the ratio would compare two distributions.")
    sampling_max_tokens: int = Field(4096, ge=1, description="Of one turn.")


class OptimizerSection(Section):
    learning_rate: FiniteFloat = Field(4e-5, gt=0, le=1)
    adam_beta1: FiniteFloat = Field(0.9, ge=0, lt=1)
    adam_beta2: FiniteFloat = Field(0.95, ge=0, lt=1)
    adam_eps: FiniteFloat = Field(1e-8, gt=0)
    adam_weight_decay: FiniteFloat = Field(0.0, ge=0)
    adam_grad_clip_norm: FiniteFloat = Field(1.0, ge=0, description="0 does not clip.")
    max_tokens_per_microbatch: int = Field(8192, ge=1)


class ScheduleSection(Section):
    max_steps: int = Field(50, ge=0)
    max_epochs: int = Field(1, ge=1)
    max_seconds: FiniteFloat | None = Field(None, gt=0, description="Wall time of the RL steps; the step under way is finished.")
    val_every: int = Field(10, ge=0, description="0 validates only at the start and the end.")
    save_every: int = Field(10, ge=0, description="0 saves only at the end.")
    keep_checkpoints: int = Field(2, ge=1)


class RolloutSection(Section):
    rollout_max_concurrency: int = Field(96, ge=1)
    rollout_timeout: FiniteFloat = Field(600.0, gt=0, description="Seconds of one attempt.")
    rollout_max_retries: int = Field(3, ge=0)
    max_steps_off_policy: int = Field(3, ge=0, le=10, description="0 is synchronous.")
    staleness_window: int = Field(1, ge=1, description="Groups that may overtake each other (W of the windowed FIFO).")
    session_weights: Literal["latest", "pinned"] = Field("latest", description="`latest`: each turn uses the newest weights and re-reads the history after an update; `pinned`: an episode keeps those it started with.")


class EngineSection(Section):
    max_running: int = Field(64, ge=1, description="Turns decoded together.")
    kv_cache_tokens: int = Field(65536, ge=64, description="Bound of the cache of keys and values, in tokens.")
    prefill_chunk_tokens: int = Field(2048, ge=16)
    deterministic: bool | None = Field(None, description="Rounds whose shapes follow from the seed. None: on when synchronous.")


class EvaluationSection(Section):
    val_num_tasks: int | None = Field(None, ge=1, description="None takes the whole validation split.")
    val_group_size: int = Field(1, ge=1)
    val_temperature: FiniteFloat = Field(0.0, ge=0, le=2)
    eval_num_tasks: int | None = Field(None, ge=1)
    eval_group_size: int = Field(1, ge=1)
    eval_temperature: FiniteFloat = Field(0.0, ge=0, le=2)
    pass_k_values: tuple[int, ...] = Field((1,))
    success_threshold: FiniteFloat = Field(1.0)
    allow_zero_baseline: bool = Field(False, description="Train although no baseline episode succeeded.")


class WarmStartSection(Section):
    demonstrations: str = Field("expert", description="`expert` (the environment's own), `module:function`, or a .jsonl file of demonstrations.")
    num_demonstrations: int = Field(128, ge=1)
    steps: int = Field(10, ge=1)
    batch_size: int = Field(16, ge=1)
    learning_rate: FiniteFloat = Field(2e-4, gt=0, le=1)


class TrackingSection(Section):
    mlflow: bool = Field(False)
    mlflow_uri: str | None = Field(None, description="None keeps a sqlite file in the run.")
    mlflow_experiment_name: str = Field("sparring")


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
