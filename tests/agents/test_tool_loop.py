"""The built-in tool loop: how each episode ends, and what the policy reads."""

import asyncio
from collections.abc import Sequence

import pytest

from sparring.agents.result import AgentResult
from sparring.agents.scripted_session import ScriptedSession
from sparring.agents.tool_loop import play
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.chat.demonstrations import tokenize_conversation
from sparring.engines.scripted import ScriptedEngine
from sparring.environments import Environment, answer, opened, record_segments, tool, tool_call
from sparring.errors import ContextOverflow, InfrastructureError, PolicyTimeout, TokenLimit, TurnLimit, UsageError
from sparring.protocols import SessionLike
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import Message, Outcome, Sampling, Task, Turn

CHAT = TemplateChat(ByteTokenizer())
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


def test_a_malformed_call_is_reported_and_counted_and_the_episode_goes_on() -> None:
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


def test_outages_of_policy_and_environment_pass() -> None:
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


class Locked(Environment):
    """`open` makes `take` available, and `take` everything but itself."""

    def __init__(self) -> None:
        self.names: object = {"open"}

    @property
    def available_tools(self) -> object:  # type: ignore[override]
        return self.names

    @tool
    def open(self, key: str) -> str:
        """Open the box."""
        self.names = ["take", "open"]
        return "open"

    @tool
    def take(self) -> str:
        """Take what is inside."""
        self.names = {"open"}
        return "a ring"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return tool_call("open", key="k"), tool_call("take"), answer("a ring")


def played_locked(session: SessionLike, environment: Environment | None = None) -> AgentResult:
    async def episode() -> AgentResult:
        async with opened(environment or Locked(), TASK) as one:
            return await play(TASK, one, session, max_turns=5)

    return asyncio.run(episode())


def test_every_turn_is_offered_the_tools_that_are_available_then() -> None:
    session = ScriptedSession(tool_call("open", key="k"), tool_call("take"), answer("a ring"))
    played_locked(session)
    names = [[tool["function"]["name"] for tool in tools] for _, tools in session.requests]
    assert names == [["open"], ["open", "take"], ["open"]]


def test_a_call_of_a_tool_that_is_not_available_is_answered_with_an_error() -> None:
    session = ScriptedSession(tool_call("take"), answer("no"))
    result = played_locked(session)
    assert result.messages[2]["content"] == "error: no tool 'take'; there are open"
    assert result.metrics["tool_errors/unknown_tool"] == 1


def test_available_tools_that_are_no_tools_are_refused_with_the_names_there_are() -> None:
    for names, problem in (
        ({"open", "shut"}, "names 'shut', but the tools are open, take"),
        ("open", "names 'open', but"),
    ):
        environment = Locked()
        environment.names = names
        with pytest.raises(UsageError, match=problem):
            played_locked(ScriptedSession(answer("x")), environment)


def test_a_change_of_tools_keeps_sampled_tokens_and_begins_a_segment_that_names_both_sets() -> None:
    script = [tool_call("open", key="k"), tool_call("take"), answer("a ring")]
    engine = ScriptedEngine([list(CHAT.answer(message, ())) for message in script])

    async def episode() -> tuple[Turn, ...]:
        async with Session(EpisodeIdentity("r0"), engine=engine, chat=CHAT, sampling=Sampling()) as session:
            async with opened(Locked(), TASK) as one:
                await play(TASK, one, session, max_turns=5)
            return session.turns

    turns = asyncio.run(episode())
    assert [turn.parent for turn in turns] == [None, None, 0]
    assert turns[1].branch_reason == "tools_changed: open became open, take"
    prompts = [CHAT.decode(turn.prompt_ids) for turn in turns]
    assert ["take" in prompt for prompt in prompts[:2]] == [False, True]
    assert '"key": "k"' in prompts[1] or '"key":"k"' in prompts[1]


def test_a_demonstration_is_cut_where_the_tools_change() -> None:
    first, second, third = record_segments(Locked, TASK)
    assert [len(one.messages) for one in (first, second, third)] == [2, 4, 6]
    assert [one.first for one in (first, second, third)] == [0, 3, 5]
    assert [[tool["function"]["name"] for tool in one.tools] for one in (first, second, third)] == [
        ["open"],
        ["open", "take"],
        ["open"],
    ]
    ids, mask = tokenize_conversation(CHAT, second.messages, second.tools, first=second.first)
    tokens = CHAT.answer(second.messages[-1], second.tools)
    assert ids[-len(tokens) :] == tokens
    assert sum(mask) == len(tokens)
