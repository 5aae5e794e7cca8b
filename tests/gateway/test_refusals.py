"""A refused request ends its episode as lost where the client chose what is refused, and is scored where the policy may have
led to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from sparring.agents import AgentResult
from sparring.agents.result import ended_by
from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.gateway import Gateway
from sparring.ledger import Ledger
from sparring.rollouts import Collector, EpisodeAgent, Grading, GroupPlan, MainPolicy, RolloutLimits
from sparring.sessions import Session
from sparring.types import Outcome, Reward, Sampling, Task, TrajectoryGroup
from tests.gateway.builders import CALL, CHAT, TOOL, USER

CHAT_PATH, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASKED: Any = {"model": "m", "messages": [USER], "tools": [TOOL]}
RESULT: Any = {"role": "tool", "tool_call_id": "call_0_0", "content": "f"}
ECHO: Any = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call_0_0", "type": "function", "function": {"name": "get", "arguments": '{"key": "b"}'}}],
}


def after(*more: Any, **fields: Any) -> Any:
    """The second request of a client that called the tool."""
    return {**ASKED, "messages": [USER, ECHO, RESULT, *more], **fields}


def play(
    *requests: tuple[str, Any],
    answers: Sequence[str] = (CALL, "done", "done", "done"),
    breaks: bool = False,
    max_retries: int = 1,
    timeout: float = 20.0,
    again: bool = False,
    **budget: int,
) -> tuple[TrajectoryGroup, dict[str, int]]:
    """A group of one whose agent sends these requests and swallows every refusal; bytes are sent as they are. It finishes, or
    `breaks` then, or sends the last one `again` until its time is over."""

    async def run() -> tuple[TrajectoryGroup, dict[str, int]]:
        async with Gateway() as gateway:

            async def agent(task: Task, session: Session) -> AgentResult:
                entry = gateway.register(session)
                headers = {"authorization": f"Bearer {entry.api_key}", "content-type": "application/json"}
                async with httpx.AsyncClient(base_url=entry.endpoint, headers=headers) as client:
                    for path, body in requests:
                        content = body if isinstance(body, bytes) else json.dumps(body).encode()
                        answer = await client.post(path, content=content)
                        assert answer.status_code < 500, answer.text
                    while again:
                        await client.post(requests[-1][0], json=requests[-1][1])
                        await asyncio.sleep(0.01)
                if breaks:
                    return ended_by(None, session, "the client broke")
                return AgentResult(outcome=Outcome.FINISHED)

            engine = ScriptedEngine(
                list(answers) * (max_retries + 1), encode=ByteTokenizer().encode, max_context_tokens=2000
            )
            with Ledger() as ledger:
                collector = Collector(
                    agent=EpisodeAgent(agent),
                    policy=MainPolicy(engine, CHAT),
                    grading=Grading(reward=lambda _: 0.0),
                    ledger=ledger,
                    seed=0,
                    limits=RolloutLimits(timeout_seconds=timeout, max_concurrency=1, max_retries=max_retries, **budget),
                )
                task = Task(id="t", messages=(USER,))
                plan = GroupPlan(task=task, position=0, group_size=1, sampling=Sampling(max_tokens=200))
                group = await collector.play_group(plan)
                assert ledger.verify() == []
                counts = {name: count for name, count in ledger.counts().items() if name.startswith("discarded/")}
                return group, {name: count for name, count in counts.items() if count}

    return asyncio.run(run())


CLIENTS_OWN = {
    "a field that is not known": (CHAT_PATH, after(depth=3)),
    "a field that is not supported": (CHAT_PATH, after(logit_bias={"5": 1})),
    "a seed": (CHAT_PATH, after(seed=1)),
    "a tool of another type": (CHAT_PATH, after(tools=[{"type": "web_search"}])),
    "a role that is not known": (CHAT_PATH, after({"role": "critic", "content": "x"})),
    "an item of another type": (RESPONSES, {"model": "m", "input": [USER, {"type": "mcp_call", "id": "x"}]}),
    "a reference to another episode's item": (
        RESPONSES,
        {"model": "m", "input": [USER, {"type": "item_reference", "id": "fc_other-0-0"}]},
    ),
    "an answer of another episode": (RESPONSES, {"model": "m", "input": "x", "previous_response_id": "resp_other-0"}),
    "a kind of thinking": (
        MESSAGES,
        {"model": "m", "max_tokens": 5, "messages": [USER], "thinking": {"type": "enabled", "budget_tokens": 2000}},
    ),
    "a schema that no engine here follows": (CHAT_PATH, after(response_format={"type": "json_object"})),
}


@pytest.mark.parametrize("name", CLIENTS_OWN)
def test_what_the_client_chose_loses_the_episode_at_once_and_is_counted(name: str) -> None:
    group, discarded = play((CHAT_PATH, ASKED), CLIENTS_OWN[name])
    assert (group.trajectories, group.num_lost, group.num_client_errors) == ((), 1, 1)
    assert discarded == {"discarded/client_error": 1}  # and not tried again
    assert sum(group.refused.values()) == 1


THE_POLICYS = {
    "arguments that are no text": (CHAT_PATH, after(tools=[TOOL], messages=[USER, {**ECHO, "tool_calls": [{"function": {}}]}])),
    "half a character": (CHAT_PATH, json.dumps(after({"role": "user", "content": "\ud800"})).encode()),
    "bytes that are no UTF-8": (CHAT_PATH, b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}'),
    "a body broken by a quote": (CHAT_PATH, b'{"model": "m", "messages": [{"role": "user", "content": "say "hi""}]}'),
    "a body above the limit": (CHAT_PATH, after({"role": "user", "content": "x" * 9_000_000})),
    "nesting without end": (CHAT_PATH, b'{"model": "m", "messages": ' + b"[" * 400 + b"]" * 400 + b"}"),
    "an image that a tool gave": (CHAT_PATH, after({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})),
    "a result that is no text": (CHAT_PATH, after({**RESULT, "content": {"a": 1}})),
    "no tokens left by the client's own count": (CHAT_PATH, after(max_tokens=0)),
    "a cut answer to be gone on with": (
        MESSAGES, {"model": "m", "max_tokens": 5, "messages": [USER, {"role": "assistant", "content": "cut"}]},
    ),
    "a block of the assistant": (
        MESSAGES,
        {"model": "m", "max_tokens": 5, "messages": [USER, {"role": "assistant", "content": [{"type": "server"}]}, USER]},
    ),
    "a call sent back without its name": (
        RESPONSES, {"model": "m", "input": [USER, {"type": "function_call", "call_id": "c", "arguments": "{}"}]},
    ),
    "a tool built from its answer": (CHAT_PATH, after(tools=[{"type": "function", "function": {"name": 5}}])),
}  # fmt: skip


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("name", THE_POLICYS)
def test_what_the_policy_may_have_led_to_is_scored(name: str, breaks: bool) -> None:
    group, discarded = play((CHAT_PATH, ASKED), THE_POLICYS[name], breaks=breaks)
    (trajectory,) = group.trajectories
    assert (trajectory.reward, group.num_lost, discarded) == (Reward(total=0.0), 0, {})
    assert trajectory.outcome is (Outcome.POLICY_ERROR if breaks else Outcome.FINISHED)
    assert sum(group.refused.values()) == 1


@pytest.mark.parametrize("name", [*CLIENTS_OWN, *THE_POLICYS])
def test_a_refusal_before_the_policy_has_answered_is_the_clients_fault(name: str) -> None:
    path, body = {**CLIENTS_OWN, **THE_POLICYS}[name]
    group, discarded = play((path, body))
    assert (group.num_client_errors, discarded) == (1, {"discarded/client_error": 1})


@pytest.mark.parametrize(
    ("reply", "fields"),
    [
        ('Call me with {"depth": 3}', {"depth": 3}),
        ("I set 'logit_bias' for you", {"logit_bias": {"5": 1}}),
        ('{"model": "m", "tools": [{"type": "web_search"}]}', {"tools": [{"type": "web_search"}]}),
        ('Take {"role": "critic"}.', {"messages": [USER, {"role": "critic", "content": "x"}]}),
        ('{"seed": 5}', {"seed": 5}),
        ("depth: 3", {"depth": 3}),
        ("<DEPTH>3</DEPTH>", {"depth": 3}),
        (r"\top_k=5", {"top_k": 5}),
        (r'{"d\u0065pth": 3}', {"depth": 3}),
        (r'{"options": "{\"depth\": 3}"}', {"depth": 3}),
        (r'{"options": "one\ndepth: 3"}', {"depth": 3}),
    ],
)
def test_a_client_that_sends_what_the_policy_asked_for_does_not_void_the_episode(reply: str, fields: Any) -> None:
    group, _ = play((CHAT_PATH, ASKED), (CHAT_PATH, after(**fields)), answers=[reply])
    assert (len(group.trajectories), group.num_lost) == (1, 0)


def test_a_client_that_gets_its_answer_after_a_refusal_plays_on() -> None:
    group, _ = play((CHAT_PATH, ASKED), (CHAT_PATH, after(depth=3)), (CHAT_PATH, after()))
    (trajectory,) = group.trajectories
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.FINISHED, 2)
    assert group.refused == {"unknown_parameter.depth": 1}


@pytest.mark.parametrize(
    ("first", "budget"),
    [
        (after({"role": "user", "content": "x" * 4000}), {}),  # leaves no room in the context
        (after(), {"max_turns": 1}),
        (after(max_tokens=-1), {}),
    ],
)
def test_what_a_client_does_about_the_policys_failure_is_not_its_own_refusal(first: Any, budget: Any) -> None:
    group, discarded = play((CHAT_PATH, ASKED), (CHAT_PATH, first), (CHAT_PATH, after(truncation="auto")), **budget)
    assert (len(group.trajectories), discarded) == (1, {})


@pytest.mark.parametrize(
    ("body", "ended"),
    [(after(depth=3), {"discarded/client_error": 1}), (after(max_tokens=0), {})],
)
def test_a_client_that_asks_again_until_its_time_is_over_is_lost_or_scored_alike(body: Any, ended: Any) -> None:
    group, discarded = play((CHAT_PATH, ASKED), (CHAT_PATH, body), again=True, timeout=0.5)
    assert (discarded, len(group.trajectories)) == (ended, 0 if ended else 1)
    assert sum(group.refused.values()) > 1


COUNT_TOKENS = ("/v1/messages/count_tokens", {"model": "m"})


@pytest.mark.parametrize("breaks", [False, True])
def test_a_route_that_is_not_there_is_counted_and_loses_no_episode_in_which_the_policy_played(
    breaks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    group, _ = play((CHAT_PATH, ASKED), COUNT_TOKENS, COUNT_TOKENS, breaks=breaks)
    assert (len(group.trajectories), group.refused) == (1, {"unknown_route.v1_messages_count_tokens": 2})
    (logged,) = [record.getMessage() for record in caplog.records if "refused a request" in record.getMessage()]
    assert logged.startswith("/v1/messages/count_tokens refused a request with 404")


def test_a_route_that_is_not_there_does_not_hide_how_the_last_request_was_refused() -> None:
    group, discarded = play((CHAT_PATH, ASKED), (CHAT_PATH, after(depth=3)), COUNT_TOKENS)
    assert (group.num_client_errors, discarded) == (1, {"discarded/client_error": 1})


def test_a_client_that_asks_only_where_no_route_is_was_refused() -> None:
    group, discarded = play(("/v1/v1/chat/completions", ASKED))
    assert (group.num_client_errors, discarded) == (1, {"discarded/client_error": 1})
    group, _ = play(COUNT_TOKENS, (CHAT_PATH, ASKED))
    assert (len(group.trajectories), group.num_lost) == (1, 0)


def test_ids_in_a_path_make_no_reason_of_their_own() -> None:
    paths = [f"/v1/responses/resp_{number:032}" for number in range(3)]
    group, _ = play((CHAT_PATH, ASKED), *((path, {}) for path in paths))
    assert group.refused == {"unknown_route.v1_responses_ID": 3}


def test_a_refusal_is_logged_once_with_its_place_and_no_key(caplog: pytest.LogCaptureFixture) -> None:
    wrong: Any = after({"role": "user", "content": [{"type": "image_url"}]})
    play((CHAT_PATH, ASKED), (CHAT_PATH, wrong), (CHAT_PATH, wrong))
    (logged,) = [record.getMessage() for record in caplog.records if "refused a request" in record.getMessage()]
    assert "messages.3.content.0.type" in logged
    assert "sk-" not in logged


def test_reasons_from_outside_are_bounded() -> None:
    requests = [(CHAT_PATH, after(**{f"field_{number}": 1})) for number in range(40)]
    group, _ = play((CHAT_PATH, ASKED), *requests, (CHAT_PATH, after()))
    assert (len(group.refused), group.refused["other"]) == (25, 16)


def test_fields_that_ask_for_nothing_are_accepted_and_counted_and_others_refused_by_name() -> None:
    fields = {
        "new_option": None,
        "new_list": [],
        "cache_breakpoints": 3,
        "trace_parent": "x",
        "request_metadata": {"a": 1},
    }
    group, _ = play((CHAT_PATH, {**ASKED, **fields}), (CHAT_PATH, after(new_flag=True)), (CHAT_PATH, after()))
    assert group.not_read == dict.fromkeys(fields, 1)
    assert group.refused == {"unknown_parameter.new_flag": 1}
