"""Load the engines of policies without weights: endpoints, scripts, the scripted expert, and constant answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sparring.assembly.environment import load_environment
from sparring.config import Config, key_from
from sparring.engines.openai import OpenAIEngine
from sparring.engines.scripted_messages import ScriptedEpisodes, ScriptedMessages, read_script
from sparring.environments import expert_script
from sparring.evaluation.policies import Policy, PolicyKind
from sparring.protocols import MessageEngine
from sparring.rollouts import MainPolicy
from sparring.runtime.plugins import load_object


def load_message_engine(config: Config, recipe_dir: Path) -> MessageEngine:
    """Return the engine of the endpoint or the script that the recipe names. Raises UsageError and DataError."""
    section = config.engine
    if section.type == "scripted":
        assert section.script is not None, "the configuration requires a script"
        return load_script(section.script, recipe_dir)
    assert section.base_url is not None and section.model is not None, "the configuration requires both"  # noqa: PT018
    return OpenAIEngine(
        section.base_url, section.model, api_key=key_from(section.api_key_env), max_concurrency=section.max_running
    )


def load_script(script: str, recipe_dir: Path) -> ScriptedMessages:
    """Return the engine of a `module:function`, or of a .jsonl file next to the recipe. Raises UsageError and DataError."""
    if ":" in script:
        return ScriptedMessages(load_object(script, folder=recipe_dir), name=script)
    return ScriptedMessages(read_script(recipe_dir / script), name=Path(script).name)


def load_evaluated_engine(
    policy: Policy, config: Config, recipe_dir: Path, *, api_key_env: str | None
) -> MessageEngine:
    """Return the engine of an evaluated policy without weights. Raises UsageError or DataError."""
    match policy.kind:
        case PolicyKind.ENDPOINT:
            return OpenAIEngine(
                policy.source,
                policy.model,
                api_key=key_from(api_key_env),
                max_concurrency=config.engine.max_running,
            )
        case PolicyKind.CONSTANT:
            return ScriptedMessages([policy.source], name=policy.name)
        case PolicyKind.SCRIPT:
            return load_script(policy.source, recipe_dir)
        case PolicyKind.EXPERT:
            make_environment, _ = load_environment(config, recipe_dir)
            return ScriptedEpisodes(partial(expert_script, make_environment), name=policy.name)
        case _:
            return load_message_engine(config, recipe_dir)


def build_main_policy(engine: MessageEngine) -> MainPolicy:
    """Return the policy of an engine without weights. An engine with scripts of whole episodes is also informed of each
    episode before the episode starts."""
    return MainPolicy(engine, introduce=engine.introduce if isinstance(engine, ScriptedEpisodes) else None)
