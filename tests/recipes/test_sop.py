"""The suite's recipe: it fits together for every domain, and an expert fits into its limits."""

import re
from pathlib import Path

import pytest

from sparring.assembly import load_environment, load_tasks
from sparring.config import load_config
from sparring.environments import record_demonstration
from sparring.environments.suites import sop
from sparring.runtime.plugins import load_object

RECIPE = Path(__file__).parents[2] / "recipes" / "sop" / "recipe.toml"
SUITE = "sparring.environments.suites.sop"


@pytest.mark.parametrize("name", [*sop.DOMAINS, "mixed"])
def test_the_recipe_takes_any_domain_as_the_documentation_states(name: str) -> None:
    names = {f"data.{split}": f"{split}_tasks" for split in sop.SPLITS}
    names |= {"environment.target": "Desk", "reward.reward": "reward", "reward.scorer": "scorer"}
    names |= {"warm_start.demonstrations": "clerk_log"}
    config = load_config(RECIPE, [f"{key}={SUITE}.{name}:{value}" for key, value in names.items()])
    tasks = load_tasks(config, RECIPE.parent)
    make_environment, environment_class = load_environment(config, RECIPE.parent)
    assert environment_class.offered_tools() == ()
    for task in tasks.held_out[: 2 * len(sop.DOMAINS)]:
        conversation = record_demonstration(make_environment, task)
        turns = [message for message in conversation if message["role"] == "assistant"]
        assert len(turns) < config.environment.max_turns
        # Three characters a token is less than any domain has; markers of messages and calls are some 12 tokens each.
        text = re.sub(
            r"\s+", " ", str([message.get("tool_calls") or message["content"] for message in conversation[2:]])
        )
        prompt = sum(len(message["content"]) for message in conversation[:2])
        assert (prompt + len(text)) / 3 + 12 * len(conversation) < 1.5 * config.model.max_sequence_length
    log = load_object(config.warm_start.demonstrations, folder=RECIPE.parent)(24)  # type: ignore[union-attr]
    assert len(log) == 24
