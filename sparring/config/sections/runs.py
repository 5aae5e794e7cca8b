"""The sections about runs as a whole: the run folder, evaluation and tracking."""

from __future__ import annotations

from pydantic import Field, FiniteFloat

from sparring.config.sections.base import Section


class RunSection(Section):
    name: str | None = Field(
        default=None, description="Folder name under `runs_dir`; None numbers runs after the recipe."
    )
    runs_dir: str = Field(default="runs", description="Folder of all runs, relative to the working directory.")
    seed: int = Field(default=0, ge=0, description="Seeds data order, sampling and initialisation.")
    num_threads: int | None = Field(default=None, ge=1, description="CPU threads of torch; None uses every core.")


class EvaluationSection(Section):
    val_num_tasks: int | None = Field(default=None, ge=1, description="None takes the whole validation split.")
    val_group_size: int = Field(default=1, ge=1, description="Episodes a validation task.")
    val_temperature: FiniteFloat = Field(
        default=0.0, ge=0, le=2, description="Sampling temperature of validation; 0 is greedy."
    )
    eval_num_tasks: int | None = Field(default=None, ge=1, description="None takes the whole held-out split.")
    eval_group_size: int = Field(default=1, ge=1, description="Episodes a held-out task.")
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


class TrackingSection(Section):
    mlflow: bool = Field(default=False, description="Whether the run is logged to MLflow too.")
    mlflow_uri: str | None = Field(default=None, description="Tracking server; None keeps a sqlite file in the run.")
    mlflow_experiment_name: str = Field(default="sparring", description="Experiment that contains the runs.")
    prometheus_address: str | None = Field(default=None, description="host:port that a Prometheus server reads.")
    prometheus_textfile_dir: str | None = Field(
        default=None, description="Folder of the node exporter's textfile collector."
    )
    webhook_url_env: str | None = Field(
        default=None,
        description="Name of the environment variable with the address that events of the run are sent to.",
    )
    prices: dict[str, FiniteFloat] = Field(
        default_factory=dict, description="Prices by name: see `sparring.metering.prices`."
    )
