"""A policy acts as the user: it sees the conversation from the other side and decides when it is over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sparring.agents.result import AgentResult
from sparring.agents.scripted_session import ScriptedSession
from sparring.agents.tool_loop import play
from sparring.environments import Environment, UserSimulator, answer, opened, tool, tool_call
from sparring.errors import ContextOverflow, InfrastructureError, UsageError
from sparring.types import Outcome, Task

TASK = Task(id="t1", messages=({"role": "user", "content": "I am hungry."},), fields={"wish": "soup"})


class Kitchen(Environment):
    def reset(self, task: Task) -> None:
        self.user = UserSimulator("customer", f"You want {task.fields['wish']}.", greeting="Welcome!", max_exchanges=2)

    async def reply(self, messages: Any, session: Any) -> str | None:
        return await self.user.reply(messages, session)

    @tool
    def cook(self, dish: str) -> str:
        """Cook."""
        return f"a bowl of {dish}"


def run_episode(agent: ScriptedSession, environment: type[Environment] = Kitchen, *, max_turns: int = 6) -> AgentResult:
    async def episode() -> AgentResult:
        kitchen = environment()
        async with opened(kitchen, TASK):
            return await play(TASK, kitchen, agent, max_turns=max_turns)

    return asyncio.run(episode())


def test_the_user_sees_the_agent_s_messages_and_nothing_of_its_tools() -> None:
    customer = ScriptedSession(answer("Soup, please."), answer("Thanks! ###STOP###"))
    agent = ScriptedSession(
        answer("What would you like?"),
        tool_call("cook", dish="soup"),
        answer("Here you are."),
        others={"customer": customer},
    )
    result = run_episode(agent)
    assert result.outcome is Outcome.FINISHED
    assert [(m["role"], m["content"]) for m in result.messages] == [
        ("user", "I am hungry."),
        ("assistant", "What would you like?"),
        ("user", "Soup, please."),
        ("assistant", ""),
        ("tool", "a bowl of soup"),
        ("assistant", "Here you are."),
    ]
    heard = [
        ("system", "You want soup."),
        ("user", "Welcome!"),
        ("assistant", "I am hungry."),
        ("user", "What would you like?"),
        ("assistant", "Soup, please."),
        ("user", "Here you are."),
    ]
    assert [[(m["role"], m["content"]) for m in messages] for messages, _ in customer.requests] == [heard[:4], heard]


def test_the_user_leaves_after_so_many_exchanges() -> None:
    customer = ScriptedSession(answer("Hm."), answer("Hm."))
    agent = ScriptedSession(*[answer("So?")] * 3, others={"customer": customer})
    result = run_episode(agent)
    assert (result.outcome, result.metrics["turns"], len(customer.turns)) == (Outcome.FINISHED, 3, 2)


def test_an_episode_whose_last_turn_gets_a_reply_has_run_out_of_turns() -> None:
    agent = ScriptedSession(answer("So?"), others={"customer": ScriptedSession(answer("Hm."))})
    result = run_episode(agent, max_turns=1)
    assert result.outcome is Outcome.MAX_TURNS
    assert result.messages[-1] == {"role": "user", "content": "Hm."}


def test_a_conversation_too_long_for_the_simulator_ends_as_one_too_long_for_the_agent() -> None:
    agent = ScriptedSession(answer("So?"), others={"customer": ScriptedSession(ContextOverflow("full"))})
    assert run_episode(agent).outcome is Outcome.MAX_TOKENS


def test_a_simulator_that_is_down_is_an_outage() -> None:
    agent = ScriptedSession(answer("So?"), others={"customer": ScriptedSession(InfrastructureError("down"))})
    with pytest.raises(InfrastructureError, match="down"):
        run_episode(agent)


class Raises(Kitchen):
    async def reply(self, messages: Any, session: Any) -> str | None:
        raise KeyError("wish")


class RepliesWithoutText(Kitchen):
    def reply(self, messages: Any, session: Any) -> Any:
        return {"role": "user", "content": "soup"}


@pytest.mark.parametrize(
    ("environment", "error", "message"),
    [
        (Raises, InfrastructureError, r"Raises.reply failed: KeyError\('wish'\)"),
        (RepliesWithoutText, UsageError, "return the user's text, or None"),
    ],
)
def test_a_reply_that_cannot_be_used_is_never_the_policys_doing(
    environment: type[Environment], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run_episode(ScriptedSession(answer("So?")), environment)
