"""The built-in tool loop: how each episode ends, and what the policy is told."""

import asyncio
from collections.abc import Sequence

import pytest

from sparring.agents.result import AgentResult
from sparring.agents.scripted_session import ScriptedSession
from sparring.agents.tool_loop import play
from sparring.environments import Environment, answer, opened, tool, tool_call
from sparring.errors import ContextOverflow, InfrastructureError, PolicyTimeout, TokenLimit, TurnLimit
from sparring.protocols import SessionLike
from sparring.types import Message, Outcome, Task

TASK = Task(id="t1", messages=({"role": "user", "content": "where is b?"},))


class Links(Environment):
    def __init__(self) -> None:
        self.asked: list[str] = []

    @tool
    def get(self, key: str) -> str:
        """Link."""
        if key == "down":
            raise InfrastructureError("links are down")
        self.asked.append(key)
        return key.upper()

    @property
    def is_done(self) -> bool:
        return "end" in self.asked


def run_episode(session: ScriptedSession, max_turns: int = 4) -> AgentResult:
    async def episode() -> AgentResult:
        environment = Links()
        async with opened(environment, TASK):
            return await play(TASK, environment, session, max_turns=max_turns)

    return asyncio.run(episode())


def test_tools_are_run_until_an_answer_without_calls_finishes() -> None:
    session = ScriptedSession(tool_call("get", key="b"), answer("B"))
    result = run_episode(session)
    assert result.outcome is Outcome.FINISHED
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.messages[2] == {"role": "tool", "tool_call_id": "call", "content": "B"}
    assert result.transitions == ({"turn": 0, "tool": "get", "arguments": {"key": "b"}, "result": "B", "error": None},)
    assert result.metrics["turns"] == 2
    assert result.metrics["tool_calls"] == 1
    assert result.metrics["tool_errors"] == 0
    assert session.requests[0][1] == Links.tool_schemas()


def test_several_calls_in_a_message_are_run_in_order() -> None:
    both = {
        **tool_call("get", key="a"),
        "tool_calls": [*tool_call("get", key="a")["tool_calls"], *tool_call("get", key="c")["tool_calls"]],
    }
    result = run_episode(ScriptedSession(both, answer("done")))
    assert [message["content"] for message in result.messages if message["role"] == "tool"] == ["A", "C"]


def test_bad_calls_come_back_to_the_policy_and_are_counted_by_kind() -> None:
    session = ScriptedSession(tool_call("find", key="b"), tool_call("get", key=1), answer("sorry"))
    result = run_episode(session)
    assert result.outcome is Outcome.FINISHED
    assert result.metrics["tool_errors"] == 2
    assert result.metrics["tool_errors/unknown_tool"] == 1
    assert result.metrics["tool_errors/wrong_type"] == 1
    assert "no tool 'find'" in session.requests[1][0][-1]["content"]


def test_a_malformed_call_is_told_and_counted_and_the_episode_goes_on() -> None:
    malformed = {
        "role": "assistant",
        "content": "",
        "malformed_tool_calls": [{"text": "<tool_call>{", "problem": "not_json"}],
    }
    session = ScriptedSession(malformed, answer("sorry"))
    result = run_episode(session)
    assert result.outcome is Outcome.FINISHED
    assert result.metrics["malformed_tool_calls"] == 1
    assert session.requests[1][0][-1] == {
        "role": "user",
        "content": "error: the tool call cannot be read: it is not valid JSON",
    }


def test_the_last_turns_calls_are_still_run_before_the_limit_ends_the_episode() -> None:
    result = run_episode(ScriptedSession(tool_call("get", key="a"), tool_call("get", key="b")), max_turns=2)
    assert result.outcome is Outcome.MAX_TURNS
    assert result.messages[-1]["content"] == "B"


def test_an_environment_that_is_done_ends_the_episode() -> None:
    assert run_episode(ScriptedSession(tool_call("get", key="end"))).outcome is Outcome.FINISHED


def test_a_cut_answer_ends_at_the_token_limit_but_a_cut_call_that_parsed_is_run() -> None:
    assert run_episode(ScriptedSession(answer("B becau"), cut=True)).outcome is Outcome.MAX_TOKENS
    unclosed = {
        "role": "assistant",
        "content": "",
        "malformed_tool_calls": [{"text": "<tool_call>", "problem": "not_closed"}],
    }
    assert run_episode(ScriptedSession(unclosed, cut=True)).outcome is Outcome.MAX_TOKENS
    result = run_episode(ScriptedSession(tool_call("get", key="b"), answer("cut"), cut=True))
    assert result.metrics["tool_calls"] == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ContextOverflow("full"), Outcome.MAX_TOKENS), (PolicyTimeout("late"), Outcome.POLICY_TIMEOUT)],
)
def test_limits_of_the_policy_become_outcomes_that_keep_the_conversation(error: Exception, outcome: Outcome) -> None:
    result = run_episode(ScriptedSession(tool_call("get", key="b"), error))
    assert result.outcome is outcome
    assert result.error == str(error)
    assert len(result.messages) == 3


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ContextOverflow("full"), Outcome.MAX_TOKENS),
        (TokenLimit("spent"), Outcome.MAX_TOKENS),
        (TurnLimit("enough"), Outcome.MAX_TURNS),
        (PolicyTimeout("late"), Outcome.POLICY_TIMEOUT),
    ],
)
def test_limits_that_the_user_meets_keep_what_the_environment_did(error: Exception, outcome: Outcome) -> None:
    class Asking(Links):
        async def reply(self, messages: Sequence[Message], session: SessionLike) -> str:
            return str(await session.of("customer").chat(messages))

    customer = ScriptedSession(error)
    session = ScriptedSession(tool_call("get", key="b"), answer("and then?"), others={"customer": customer})
    result = asyncio.run(play(TASK, Asking(), session, max_turns=4))
    assert (result.outcome, result.error) == (outcome, str(error))
    assert [transition["tool"] for transition in result.transitions] == ["get"]


def test_outages_of_policy_and_world_pass() -> None:
    with pytest.raises(InfrastructureError, match="engine"):
        run_episode(ScriptedSession(InfrastructureError("engine")))
    with pytest.raises(InfrastructureError, match="links are down"):
        run_episode(ScriptedSession(tool_call("get", key="down")))


def test_a_prompt_that_describes_the_tools_sends_none_but_calls_work() -> None:
    class Terse(Links):
        describe_tools = "prompt"

    session = ScriptedSession(tool_call("get", key="b"), answer("B"))
    result = asyncio.run(play(TASK, Terse(), session, max_turns=4))
    assert session.requests[0][1] == ()
    assert result.metrics["tool_calls"] == 1
