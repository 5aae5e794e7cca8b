"""The sections about a run as a whole: the run folder, evaluation and tracking."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, FiniteFloat

from sparring.config.sections.base import Section
from sparring.runtime.text_rules import check_rule


class RunSection(Section):
    name: str | None = Field(
        default=None, description="Folder name under `runs_dir`; None uses the recipe's name and a number."
    )
    runs_dir: str = Field(default="runs", description="Folder of all runs, relative to the working directory.")
    seed: int = Field(default=0, ge=0, description="Seed of data order, sampling and initialization.")
    num_threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads of torch; None uses OMP_NUM_THREADS, or every core that the process may use.",
    )
    copy_to: str | None = Field(
        default=None,
        description="Address of a store, such as s3://BUCKET/FOLDER, where a copy of the run is kept up to date.",
    )
    launcher: Literal["processes", "ray"] = Field(
        default="processes",
        description="What starts vLLM servers, the ranks of a group and workers for the run: `processes`, on this machine; or "
        "`ray`, on the nodes of a Ray cluster.",
    )
    ray_address: str = Field(
        default="auto", description="Address of the Ray cluster; `auto` finds the one of this machine."
    )


class EvaluationSection(Section):
    val_num_tasks: int | None = Field(
        default=None, ge=1, description="Number of validation tasks; None uses the whole validation split."
    )
    val_group_size: int = Field(default=1, ge=1, description="Episodes per validation task.")
    val_temperature: FiniteFloat = Field(
        default=0.0, ge=0, le=2, description="Sampling temperature of validation; 0 is greedy."
    )
    val_top_p: FiniteFloat = Field(default=1.0, gt=0, le=1, description="Nucleus sampling of validation.")
    val_max_tokens: int | None = Field(
        default=None, ge=1, description="Maximum tokens per turn of validation; None: sampling.sampling_max_tokens."
    )
    eval_num_tasks: int | None = Field(
        default=None, ge=1, description="Number of held-out tasks; None uses the whole held-out split."
    )
    eval_group_size: int = Field(default=1, ge=1, description="Episodes per held-out task.")
    eval_temperature: FiniteFloat | None = Field(
        default=None, ge=0, le=2, description="Temperature at which policies are served; None: sampling.temperature."
    )
    pass_k_values: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        default=None,
        strict=False,
        description="Values of k for pass@k and pass^k; None: every k up to the episodes per task.",
    )
    success_threshold: FiniteFloat = Field(
        default=1.0, ge=0, le=1, description="Lowest score that counts as a success; scores are from 0 to 1."
    )
    allow_zero_baseline: bool = Field(default=False, description="Train even if no baseline episode succeeds.")


class TrackingSection(Section):
    mlflow: bool = Field(default=False, description="Whether the run is also logged to MLflow.")
    mlflow_uri: str | None = Field(default=None, description="Tracking server; None writes a SQLite file in the run.")
    mlflow_experiment_name: str = Field(default="sparring", description="Experiment that contains the runs.")
    tensorboard: bool = Field(default=False, description="Whether event files for TensorBoard are written in the run.")
    wandb: bool = Field(default=False, description="Whether the run is also logged to Weights & Biases.")
    wandb_project: str = Field(default="sparring", min_length=1, description="Project that contains the runs.")
    wandb_entity: str | None = Field(default=None, description="User or team of the project; None: the key's default.")
    wandb_mode: Literal["online", "offline"] | None = Field(
        default=None,
        description="`offline` only writes files, for `wandb sync`; None: `offline` if WANDB_MODE is, or `online`.",
    )
    prometheus_address: str | None = Field(default=None, description="host:port where a Prometheus server reads.")
    prometheus_keys: str | None = Field(
        default=None,
        min_length=1,
        description="File of keys by name (`sparring keys`, scope `read`) for `prometheus_address`. None: anyone can read.",
    )
    prometheus_tls_certificate: str | None = Field(
        default=None,
        min_length=1,
        description="PEM file with the certificate of `prometheus_address`. None: plain HTTP.",
    )
    prometheus_tls_key: str | None = Field(
        default=None, min_length=1, description="PEM file with the private key of the certificate."
    )
    prometheus_textfile_dir: str | None = Field(
        default=None, description="Folder that the node exporter's textfile collector reads."
    )
    webhook_url_env: str | None = Field(
        default=None,
        description="Name of the environment variable that contains the address for events of the run.",
    )
    redact: tuple[Annotated[str, AfterValidator(check_rule)], ...] = Field(
        default=(),
        strict=False,
        description="What is replaced in texts that leave the run: email, phone, iban, api_key, and regular expressions.",
    )
    prices: dict[str, Annotated[FiniteFloat, Field(ge=0)]] = Field(
        default_factory=dict, description="Prices by name: see `sparring.metering.prices`."
    )
