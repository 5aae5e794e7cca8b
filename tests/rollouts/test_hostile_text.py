"""No text of a policy makes an outage of its episode, or ends the run."""

import asyncio
import functools
from pathlib import Path

import pytest

from sparring.agents import AgentResult, EnvironmentAgent
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.environments import Environment, answer, tool, tool_call
from sparring.ledger import Ledger
from sparring.rollouts import Collector, EpisodeAgent, Grading, MainPolicy, RolloutLimits
from sparring.sessions import AnySession
from sparring.types import Json, Message, Outcome, Task
from tests.rollouts.test_collector import plans


class Echo(Environment):
    @tool
    def say(self, text: str) -> str:
        """Say it back."""
        self.text = text
        return text

    def final_state(self) -> Json:
        return {"text": getattr(self, "text", None)}


def tool_call_with(arguments: str) -> Message:
    function = {"name": "say", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


HOSTILE: dict[str, Message] = {
    "half a character": tool_call("say", text="a\ud83db"),
    "zeros and escapes": tool_call("say", text="\0\x1b[2J\u202e" * 99),
    "8 MB": tool_call("say", text="x" * (8 << 20)),
    "a number of 5,000 digits": tool_call_with('{"text": %s}' % ("9" * 5000)),
    "deep": tool_call("say", text=functools.reduce(lambda inside, _: [inside], range(900), "a")),
    "a marked value": tool_call("say", text='{"@": ["tuple", [1]]}'),
    "no name": tool_call("", text="a"),
    "a name of another method": tool_call("close"),
    "an answer of 8 MB": answer("y" * (8 << 20)),
    "half an answer": answer("\udc00\0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_of_the_policy_makes_an_outage_or_ends_the_run(name: str, tmp_path: Path) -> None:
    async def agent(task: Task, session: AnySession) -> AgentResult:
        return await EnvironmentAgent(Echo, max_turns=3).play(task, session)

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        (plan,) = plans(1, group_size=1)
        playing = Collector(
            agent=EpisodeAgent(agent),
            policy=MainPolicy(ScriptedMessages([HOSTILE[name], answer("four")], name="policy")),
            grading=Grading(reward=lambda _: -1.0, scorer=lambda _: 0.0),
            ledger=ledger,
            seed=0,
            limits=RolloutLimits(timeout_seconds=60.0, max_concurrency=8, max_retries=0),
        )
        group = asyncio.run(playing.play_group(plan))
        assert (group.rewards, group.num_lost, group.trajectories[0].outcome) == ([-1.0], 0, Outcome.FINISHED)
        assert ledger.verify() == []
