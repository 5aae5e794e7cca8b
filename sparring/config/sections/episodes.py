"""The sections about episodes: tasks, environment, agent, policies, reward, sampling, rollout limits and engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from sparring.config.sections.base import Section
from sparring.types import EngineCapabilities


class DataSection(Section):
    train: str | None = Field(
        default=None,
        description="Dataset file (.parquet, .jsonl, .json, .csv), `hf://OWNER/NAME@REVISION?split=NAME` on the Hugging Face "
        "hub, or `module:function` that returns Tasks.",
    )
    validation: str | None = Field(
        default=None, description="Same form as `train`; None: a share of the training data is split off."
    )
    held_out: str | None = Field(
        default=None, description="Same form as `train`; None: a share of the training data is split off."
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description='New names of columns of files and data sets, such as `{prompt = "question"}`.',
    )
    validation_fraction: FiniteFloat = Field(
        default=0.1, ge=0, lt=1, description="Share that is split off if `validation` is None."
    )
    held_out_fraction: FiniteFloat = Field(
        default=0.1, ge=0, lt=1, description="Share that is split off if `held_out` is None."
    )


class EnvironmentSection(Section):
    target: str | None = Field(
        default=None, description="`module:Class` of the environment, searched in the recipe's folder first."
    )
    max_turns: int = Field(default=8, ge=1, description="Maximum number of policy calls per episode.")
    options: dict[str, object] = Field(default_factory=dict, description="Keyword arguments of the class.")
    workers: int = Field(
        default=0,
        ge=0,
        description="Number of processes that run environments, reward and scorer; 0 runs them in the trainer's process, unless "
        "workers connect (`listen`).",
    )
    worker_timeout: FiniteFloat = Field(
        default=60.0, gt=0, description="Seconds after which a worker whose event loop does not respond is replaced."
    )
    listen: str = Field(
        default="",
        description="HOST:PORT at which workers on other machines connect (`sparring worker`), in addition to `workers`. "
        "Empty: none.",
    )
    listen_timeout: FiniteFloat = Field(
        default=300.0,
        gt=0,
        description="Seconds without any worker after which the run ends, if no worker runs in a process of this machine.",
    )
    api_key_env: str = Field(
        default="SPARRING_API_KEY",
        description="Name of the environment variable that contains the key of connected workers. Without a key, only a "
        "loopback address can be listened on.",
    )
    tls_certificate: str | None = Field(
        default=None,
        min_length=1,
        description="PEM file with the certificate for connected workers. None: connections are not encrypted.",
    )
    tls_key: str | None = Field(
        default=None, min_length=1, description="PEM file with the private key of `tls_certificate`."
    )

    @property
    def has_workers(self) -> bool:
        """Whether environments, reward and scorer run in workers, and not in the trainer's process."""
        return self.workers > 0 or self.listen != ""


LAUNCHED_KEYS = ("listen_timeout", "api_key_env")
"""The keys of [environment] that are read only with `listen`, and for workers that a cluster starts."""
LISTEN_KEYS = (*LAUNCHED_KEYS, "tls_certificate", "tls_key")
"""The keys of [environment] that are read only where workers connect."""


class AgentSection(Section):
    """The agent. A recipe sets at most one of the first four keys; without them, the built-in tool loop runs the episodes."""

    function: str | None = Field(
        default=None,
        description="`module:function` of an agent, `play(task, session)`, async or plain, which returns the reward or an "
        "AgentReport.",
    )
    command: tuple[str, ...] | None = Field(
        default=None, strict=False, min_length=1, description="Program with its arguments, started for every episode."
    )
    variables: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(=|$)")], ...] = Field(
        default=(),
        strict=False,
        description="Further environment variables of `command`: `NAME` passes one on, `NAME=value` sets it.",
    )
    url: str | None = Field(default=None, description="Address of a running agent that receives episodes by POST.")
    pull: bool = Field(default=False, description="Whether episodes wait for workers that poll the gateway for them.")
    max_turns: int | None = Field(default=None, ge=1, description="Maximum number of policy calls per episode.")
    gateway_host: str = Field(
        default="127.0.0.1",
        description="Address that the gateway listens on, for `url` and `pull`; 0.0.0.0 is every address.",
    )
    gateway_port: int = Field(
        default=0, ge=0, le=65535, description="Port that the gateway listens on; 0 uses a free one."
    )
    gateway_names: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Further host names by which a tunnel or a proxy addresses a gateway on a loopback address.",
    )
    worker_keys: str | None = Field(
        default=None,
        min_length=1,
        description="File of keys by name for workers that poll (`sparring keys`, scope `work`). None: one key for all workers.",
    )
    audit_log: str | None = Field(
        default=None, min_length=1, description="File to which a line is appended for each request of a worker."
    )
    tps_limit: FiniteFloat = Field(
        default=5.0, gt=0, description="Maximum number of episodes per second that are started at `url`."
    )

    @property
    def is_foreign(self) -> bool:
        """Whether the user's own agent runs the episodes instead of the built-in tool loop."""
        return self.kind is not None

    @property
    def kind(self) -> str | None:
        """The key that defines the agent; None for the built-in tool loop."""
        return next(iter(self.kinds()), None)

    def kinds(self) -> list[str]:
        """Return all keys that define an agent. A recipe with more than one such key is rejected."""
        return [kind for kind in ("function", "command", "url", "pull") if getattr(self, kind) not in (None, False)]


class PolicySection(Section):
    """An additional policy of every episode, which agents and environments call by its name."""

    role: Literal["trained", "frozen", "endpoint"] = Field(
        default="frozen",
        description="`trained`: the policy in training, which also learns from these turns. `frozen`: fixed weights of the "
        "same model. `endpoint`: an OpenAI-compatible endpoint. Tokens of frozen policies and endpoints are in no loss.",
    )
    weights: str = Field(
        default="base",
        description="For `frozen`: `base`, the model as loaded; `warm_start`, the model after the warm start; or a run "
        "folder.",
    )
    base_url: str | None = Field(default=None, description="Address of the endpoint, with its /v1.")
    model: str | None = Field(default=None, min_length=1, description="Name of the model at the endpoint.")
    api_key_env: str | None = Field(
        default=None, description="Name of the environment variable that contains the endpoint's key."
    )
    temperature: FiniteFloat = Field(
        default=1.0, ge=0, le=2, description="Sampling temperature of `frozen` and `endpoint`, also in evaluations."
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Maximum tokens per turn of `frozen` and `endpoint`. None: sampling.sampling_max_tokens.",
    )


POLICY_KEYS: Mapping[str, frozenset[str]] = {
    "trained": frozenset({"role"}),
    "frozen": frozenset({"role", "weights", "temperature", "max_tokens"}),
    "endpoint": frozenset({"role", "base_url", "model", "api_key_env", "temperature", "max_tokens"}),
}
"""The keys of [policies.NAME] that each role reads."""


class RewardSection(Section):
    reward: str | None = Field(
        default=None,
        description="`module:function` that returns the training reward. None: the agent returns the reward.",
    )
    scorer: str | None = Field(
        default=None,
        description="`module:function` that returns the score, in [0, 1]. None: evaluation uses the reward and reports that "
        "the score is not independent.",
    )


class SamplingSection(Section):
    temperature: FiniteFloat = Field(default=1.0, gt=0, le=2, description="Sampling temperature of training episodes.")
    sampling_top_p: FiniteFloat = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Nucleus sampling. Values below 1 are refused for training, because the ratio would compare two different "
        "distributions.",
    )
    sampling_max_tokens: int = Field(default=1024, ge=1, description="Maximum tokens per turn.")


class RolloutSection(Section):
    rollout_max_concurrency: int = Field(
        default=96, ge=1, description="Maximum number of episodes that run at the same time."
    )
    rollout_timeout: FiniteFloat = Field(
        default=600.0, gt=0, description="Seconds after which an attempt at an episode times out."
    )
    rollout_max_retries: int = Field(
        default=3, ge=0, description="Maximum number of retries of an episode after infrastructure failures."
    )
    rollout_max_tokens: int | None = Field(
        default=None, ge=1, description="Maximum sampled tokens per episode, over all its turns."
    )
    max_lost_share: FiniteFloat = Field(
        default=0.2,
        gt=0,
        le=1,
        description="The run stops if more than this share of training episodes is permanently lost (infrastructure, "
        "`client_error`, `reward_error`).",
    )
    max_steps_off_policy: int = Field(
        default=3,
        ge=0,
        le=10,
        description="Maximum steps between sampling a token and training on it; 0 is synchronous.",
    )
    staleness_window: int = Field(
        default=1, ge=1, description="Number of groups that may overtake each other (W of the windowed FIFO)."
    )
    session_weights: Literal["latest", "pinned"] = Field(
        default="latest",
        description="`latest`: each turn uses the newest weights and processes the history again after an update; "
        "`pinned`: an episode keeps the weights that it started with.",
    )


class EngineSection(Section):
    """The engine that samples completions. `ENGINE_KEYS` lists the keys that each engine reads."""

    type: Literal["torch", "remote", "vllm", "sglang", "tinker", "openai", "scripted"] = Field(
        default="torch",
        description="What samples completions: `torch`, the model in this process; `remote`, an engine that another process "
        "serves (`sparring engine`); `vllm`, vLLM servers; `sglang`, running SGLang servers; `tinker`, the service of "
        "[learner]; `openai`, an OpenAI-compatible endpoint; or `scripted`, a script. `openai` and `scripted` cannot be "
        "trained.",
    )
    base_url: str | None = Field(
        default=None, description="Address of the endpoint, with its /v1, or of the remote engine."
    )
    base_urls: tuple[str, ...] = Field(
        strict=False,
        default=(),
        description="Addresses of running vLLM or SGLang servers with the recipe's base model. Empty: vLLM servers are started "
        "on this machine, and stop with the run.",
    )
    num_servers: int = Field(
        default=1, ge=1, le=64, description="Number of vLLM servers that are started on this machine."
    )
    server_environment: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of the Python environment with vLLM. None: the one that `sparring install vllm` creates.",
    )
    server_arguments: tuple[str, ...] = Field(
        strict=False,
        default=(),
        description="More arguments for `vllm serve`, such as '--gpu-memory-utilization=0.4'. They replace the arguments "
        "that Sparring chooses.",
    )
    adapters_dir: str | None = Field(
        default=None,
        min_length=1,
        description="Folder for the weights of each version, which the servers read. None: a folder in the run folder.",
    )
    model: str | None = Field(default=None, min_length=1, description="Name of the model at the endpoint.")
    api_key_env: str | None = Field(
        default=None, description="Name of the environment variable that contains the endpoint's key."
    )
    script: str | None = Field(
        default=None,
        description="A .jsonl file of the assistant's messages, or `module:function` that takes the messages so far and "
        "returns the next one.",
    )
    max_running: int = Field(
        default=64,
        ge=1,
        description="Maximum number of turns that are decoded together, or of open requests to an endpoint or to each "
        "server.",
    )
    kv_cache_tokens: int = Field(default=65536, ge=64, description="Maximum tokens in the cache of keys and values.")
    prefill_chunk_tokens: int = Field(
        default=2048, ge=16, description="Maximum prompt tokens that are processed between two decoding steps."
    )
    deterministic: bool | None = Field(
        default=None,
        description="Whether turns run in rounds whose shapes depend only on the seed. None: true if training is synchronous.",
    )

    @property
    def uses_servers(self) -> bool:
        """Whether inference servers sample, which get each version of the weights."""
        return self.type in ("vllm", "sglang")


LOCAL_SERVER_KEYS = ("num_servers", "server_environment", "server_arguments")
"""The keys of [engine] that are read if vLLM servers are started on this machine."""

ENGINE_KEYS: Mapping[str, frozenset[str]] = {
    "torch": frozenset({"type", "max_running", "kv_cache_tokens", "prefill_chunk_tokens", "deterministic"}),
    "remote": frozenset({"type", "base_url", "api_key_env", "deterministic"}),
    "vllm": frozenset({"type", "base_urls", "adapters_dir", "api_key_env", "max_running", *LOCAL_SERVER_KEYS}),
    "sglang": frozenset({"type", "base_urls", "adapters_dir", "api_key_env", "max_running"}),
    "tinker": frozenset({"type", "max_running"}),
    "openai": frozenset({"type", "base_url", "model", "api_key_env", "max_running"}),
    "scripted": frozenset({"type", "script"}),
}
"""The keys of [engine] that each engine reads."""

_TOKENS = EngineCapabilities(
    reports_token_ids=True,
    holds_several_weights=True,
    pins_weights=True,
    deterministic_rounds=True,
    constrained_sampling=True,
    reports_removed_mass=True,
    scores_given_ids=True,
)
_ADAPTERS = EngineCapabilities(
    reports_token_ids=True, holds_several_weights=True, pins_weights=True, scores_given_ids=True
)
ENGINE_CAPABILITIES: Mapping[str, EngineCapabilities] = {
    "torch": _TOKENS,
    "remote": _TOKENS,
    "vllm": replace(_ADAPTERS, constrained_sampling=True),
    "sglang": _ADAPTERS,
    "tinker": replace(_ADAPTERS, pins_weights=False, takes_any_weights=False),
    "openai": EngineCapabilities(),
    "scripted": EngineCapabilities(),
}
"""The capabilities that each engine can have. Those of a remote engine are checked when it is connected."""
