"""An episode as spans: real times, the input of each model call, tools between two calls, grades by name."""

from dataclasses import replace

from sparring.tracking.spans import SpanKind, build_trace
from sparring.types import Reward
from tests.tracking.builders import TASK, TRAJECTORY, TURN

CALLS = [
    {"id": "a", "function": {"name": "get", "arguments": '{"key": 1}'}},
    {"id": "b", "function": {"name": "put", "arguments": "{}"}},
]
ASKING = replace(TURN, message={"role": "assistant", "content": "", "tool_calls": CALLS}, began=1.0, seconds=2.0)
ANSWERING = replace(TURN, id=1, parent=0, began=7.0, seconds=1.0)
PLAYED = replace(
    TRAJECTORY,
    turns=(ASKING, ANSWERING),
    messages=(
        *TASK.messages,
        ASKING.message,
        {"role": "tool", "tool_call_id": "a", "content": "4"},
        {"role": "tool", "tool_call_id": "b", "content": "error: no"},
        ANSWERING.message,
    ),
    reward=Reward(total=1.0, per_turn={0: 0.25, 1: 0.75}, components={"right": 1.0}),
    score_parts={"format": 0.5},
    transitions=({"tool": "get", "error": None}, {"tool": "put", "error": "tool_raised"}),
    began=1000.0,
    seconds=10.0,
)


def times(name: str) -> tuple[float, float]:
    (span,) = [one for one in build_trace(PLAYED, run="r", stored=0.0).spans if one.name == name]
    return span.began_ns / 1e9, span.ended_ns / 1e9


def test_spans_have_the_times_at_which_things_happened() -> None:
    assert times("episode train/0/t1/0.0") == (1000.0, 1010.0)
    # A turn lasts until the next one begins, the last until the episode is over.
    assert times("turn 0") == (1001.0, 1007.0)
    assert times("turn 1") == (1007.0, 1010.0)
    # Answered after 2 s; the two tools share the 4 s that are left.
    assert times("get") == (1003.0, 1005.0)
    assert times("put") == (1005.0, 1007.0)
    calls = [one for one in build_trace(PLAYED, run="r", stored=0.0).spans if one.kind is SpanKind.MODEL_CALL]
    assert [(one.began_ns / 1e9, one.ended_ns / 1e9) for one in calls] == [(1001.0, 1003.0), (1007.0, 1008.0)]


def test_an_episode_that_did_not_keep_its_beginning_ends_when_it_was_stored() -> None:
    old = replace(PLAYED, began=None, turns=tuple(replace(turn, began=None) for turn in PLAYED.turns))
    spans = build_trace(old, run="r", stored=2000.0).spans
    assert (spans[0].began_ns, spans[0].ended_ns) == (1990 * 10**9, 2000 * 10**9)
    # 2 s and then 1 s, one at once after the other.
    assert [one.began_ns // 10**9 for one in spans if one.kind is SpanKind.TURN] == [1990, 1992]


def test_a_model_call_shows_what_was_new_and_a_tool_call_its_result_and_error() -> None:
    spans = build_trace(PLAYED, run="r", stored=0.0).spans
    first, second = (one for one in spans if one.kind is SpanKind.MODEL_CALL)
    assert first.inputs == {"messages": list(TASK.messages)}
    assert second.inputs == {"messages": list(PLAYED.messages[2:4])}
    assert second.outputs == {"choices": [{"message": ANSWERING.message}]}
    # log-probabilities -0.5 and -0.25
    assert (first.attributes["logprob_mean"], first.attributes["logprob_min"]) == (-0.375, -0.5)
    assert first.attributes["policy_versions"] == [[3, 1], [4, 1]]
    get, put = (one for one in spans if one.kind is SpanKind.TOOL_CALL)
    assert (get.inputs, get.outputs, get.error) == ('{"key": 1}', "4", None)
    assert (put.outputs, put.error) == ("error: no", "tool_raised")
    assert get.parent == put.parent == first.parent


def test_reward_components_turns_and_score_are_assessments() -> None:
    trace = build_trace(PLAYED, run="r", stored=0.0)
    whole = {one.name: one.value for one in trace.assessments if one.span is None}
    assert whole == {"reward": 1.0, "reward/right": 1.0, "score": 0.5, "score/format": 0.5}
    turns = {one.id: one.name for one in trace.spans}
    assert {turns[one.span]: one.value for one in trace.assessments if one.span} == {"turn 0": 0.25, "turn 1": 0.75}


def test_ids_follow_from_run_and_episode() -> None:
    once, again = (build_trace(PLAYED, run="r", stored=stored) for stored in (1.0, 2.0))
    assert (once.id, [one.id for one in once.spans]) == (again.id, [one.id for one in again.spans])
    assert len({one.id for one in once.spans}) == len(once.spans)
    assert build_trace(PLAYED, run="other", stored=1.0).id != once.id
    assert {len(once.id), *(len(one.id) for one in once.spans)} == {32, 16}
