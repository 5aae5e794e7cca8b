"""Who samples: the policy that is trained, and the named ones that play beside it or in its place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparring.config import Config, PolicySection, key_from
from sparring.engines.openai import OpenAIEngine
from sparring.engines.scripted_messages import ScriptedMessages, read_script
from sparring.plugins import load_object
from sparring.protocols import MessageEngine
from sparring.rollouts import NamedPolicy
from sparring.types import Sampling, Weights

if TYPE_CHECKING:
    from sparring.engines.frozen import FrozenEngine
    from sparring.engines.torch_engine import TorchEngine
    from sparring.models.policy import Policy


def load_policy(config: Config, recipe_dir: Path) -> Policy:
    """The model with what of it is trained. Raises ServiceError when it cannot be loaded."""
    from sparring.models.policy import Policy
    from sparring.models.precision import resolve_device, resolve_precision
    from sparring.models.pretrained import load_pretrained

    section = config.model
    if ":" in section.name:
        make = load_object(section.name, beside=recipe_dir)
        model, tokenizer = make(config.run.seed)
    else:
        model, tokenizer = load_pretrained(section.name)
    device = resolve_device(section.device)
    is_lora = section.trained_weights == "lora"
    return Policy(
        model,
        tokenizer,
        precision=resolve_precision(section.precision, device),
        device=device,
        max_positions=section.max_sequence_length,
        lora_rank=section.lora_rank if is_lora else None,
        lora_alpha=section.lora_alpha,
        lora_targets=section.lora_targets,
        lora_layers=section.lora_layers,
        seed=config.run.seed,
    )


def frozen_engine(section: PolicySection, engine: TorchEngine, policy: Policy, initial: Weights) -> FrozenEngine:
    """Who plays weights that stay as they are; without any yet where the warm start is to make them. Raises DataError for
    a folder that holds no weights of this model."""
    from sparring.engines.frozen import FrozenEngine
    from sparring.training import checkpoints

    if section.weights == "warm_start":
        return FrozenEngine(engine)
    if section.weights == "base":
        return FrozenEngine(engine, initial)
    return FrozenEngine(engine, checkpoints.load_weights(checkpoint_in(section.weights), policy))


def with_checkpoints(config: Config) -> Config:
    """With the checkpoint that each frozen policy is, in place of the folder that it was named by: so a run plays with the same
    weights from wherever it is continued, whatever that folder holds by then. Raises DataError where there is none."""
    frozen = {
        name: section.model_copy(update={"weights": str(checkpoint_in(section.weights).resolve())})
        for name, section in config.policies.items()
        if section.role == "frozen" and section.weights not in ("base", "warm_start")
    }
    return config.model_copy(update={"policies": {**config.policies, **frozen}}) if frozen else config


def checkpoint_in(folder: str | Path) -> Path:
    """The newest of a run, or the one that is named itself. Raises DataError."""
    from sparring.training import checkpoints

    source = Path(folder)
    return checkpoints.newest(source / "checkpoints" if (source / "checkpoints").is_dir() else source)


def endpoints_of(config: Config) -> dict[str, NamedPolicy]:
    """The policies of the episode that are served elsewhere. Raises UsageError for a key that is not set."""
    policies = {}
    for name, section in config.policies.items():
        if section.role == "endpoint":
            assert section.base_url is not None and section.model is not None, "the configuration asks for both"  # noqa: PT018
            engine = OpenAIEngine(
                section.base_url, section.model, api_key=key_from(section.api_key_env),
                max_concurrency=config.rollout.rollout_max_concurrency,
            )  # fmt: skip
            policies[name] = NamedPolicy(engine=engine, sampling=sampling_of(section, config))
    return policies


def sampling_of(section: PolicySection, config: Config) -> Sampling:
    return Sampling(
        temperature=section.temperature, max_tokens=section.max_tokens or config.sampling.sampling_max_tokens
    )


def message_engine_of(config: Config, recipe_dir: Path) -> MessageEngine:
    """The endpoint or the script that the recipe names. Raises UsageError, DataError."""
    section = config.engine
    if section.type == "scripted":
        assert section.script is not None, "the configuration asks for a script"
        return script_of(section.script, recipe_dir)
    assert section.base_url is not None and section.model is not None, "the configuration asks for both"  # noqa: PT018
    return OpenAIEngine(
        section.base_url, section.model, api_key=key_from(section.api_key_env), max_concurrency=section.max_running
    )


def script_of(script: str, recipe_dir: Path) -> ScriptedMessages:
    """A `module:function`, or a .jsonl file beside the recipe. Raises UsageError, DataError."""
    if ":" in script:
        return ScriptedMessages(load_object(script, beside=recipe_dir), name=script)
    return ScriptedMessages(read_script(recipe_dir / script), name=Path(script).name)
