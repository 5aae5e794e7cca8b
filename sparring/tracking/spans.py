"""An episode as a tree of spans, for systems that show traces. The spans are the episode, its turns, and the model call
and tool calls of each turn.

    episode                 began ................................................ over
      turn 0                began ................ turn 1 began
        model call          began ...... answered
        tool `look_up`                  ........ turn 1 began
      turn 1                                       began .......................... over

The duration of a model call is measured. Tool calls are not timed, so the time until the next turn is divided equally
among them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean

from sparring.types import Json, Message, Trajectory, Turn


class SpanKind(StrEnum):
    """The kind of a span, with the names that MLflow uses."""

    EPISODE = "AGENT"
    TURN = "CHAIN"
    MODEL_CALL = "CHAT_MODEL"
    TOOL_CALL = "TOOL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One timed operation. Times are in nanoseconds since 1970."""

    id: str
    """16 hexadecimal digits derived from the trace and the span's place in the trace, so that sending the span twice
    changes nothing."""
    parent: str | None
    name: str
    kind: SpanKind
    began_ns: int
    ended_ns: int
    inputs: Json = None
    outputs: Json = None
    attributes: Mapping[str, Json] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A reward or score of an episode or of one of its turns."""

    name: str
    value: float
    source: str
    """`reward` or `scorer`."""
    span: str | None = None
    """The span of the turn, or None for the whole episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """An episode's spans, the root first, and its assessments."""

    id: str
    """32 hexadecimal digits derived from the run and the episode."""
    spans: tuple[Span, ...]
    assessments: tuple[Assessment, ...]


def build_trace(trajectory: Trajectory, *, run: str, stored: float) -> Trace:
    """Build the trace of an episode.

    `run` is the id of the MLflow run. `stored` is the time when the episode was written, in seconds since 1970. This
    time counts as the end of the episode if the run did not store the start.
    """
    trace = _digest(f"{run}/{trajectory.id}", 32)
    began = trajectory.began if trajectory.began is not None else stored - trajectory.seconds
    root = Span(
        id=_digest(f"{trace}/episode", 16),
        parent=None,
        name=f"episode {trajectory.id}",
        kind=SpanKind.EPISODE,
        began_ns=_ns(began),
        ended_ns=_ns(began + trajectory.seconds),
        inputs={"messages": trajectory.task.messages},
        outputs={"messages": trajectory.messages[-1:]},
        attributes={
            "task": trajectory.task.id,
            "attempt": trajectory.attempt,
            "outcome": trajectory.outcome,
            "reward": None if trajectory.reward is None else trajectory.reward.total,
            "score": trajectory.score,
            **{f"agent.{name}": value for name, value in trajectory.metrics.items()},
        },
        error=trajectory.error,
    )
    spans, assessments = [root], list(_assessments(trajectory))
    per_turn = {} if trajectory.reward is None else trajectory.reward.per_turn or {}
    for turn, own in _turns(trajectory, trace, root, began):
        spans += own
        if turn.id in per_turn:
            assessments.append(Assessment(name="turn_reward", value=per_turn[turn.id], source="reward", span=own[0].id))
    return Trace(id=trace, spans=tuple(spans), assessments=tuple(assessments))


def _assessments(trajectory: Trajectory) -> Iterator[Assessment]:
    if (reward := trajectory.reward) is not None:
        yield Assessment(name="reward", value=reward.total, source="reward")
        for name, value in reward.components.items():
            yield Assessment(name=f"reward/{name}", value=value, source="reward")
    if trajectory.score is not None:
        yield Assessment(name="score", value=trajectory.score, source="scorer")
        for name, value in trajectory.score_parts.items():
            yield Assessment(name=f"score/{name}", value=value, source="scorer")


def _turns(trajectory: Trajectory, trace: str, root: Span, began: float) -> Iterator[tuple[Turn, list[Span]]]:
    """Yield each turn with its spans: the turn, the model call and the tool calls."""
    turns = sorted((*trajectory.turns, *trajectory.other_turns), key=lambda turn: turn.id)
    starts = _starts(turns, began)
    inputs = _new_messages(trajectory)
    results = {str(one.get("tool_call_id")): one.get("content") for one in trajectory.messages if _is_result(one)}
    errors = _errors(trajectory)
    for place, turn in enumerate(turns):
        answered = starts[place] + turn.seconds
        following = starts[place + 1] if place + 1 < len(turns) else began + trajectory.seconds
        name = f"turn {turn.id}" if turn.policy is None else f"turn {turn.id} ({turn.policy})"
        own = Span(
            id=_digest(f"{trace}/{turn.id}", 16),
            parent=root.id,
            name=name,
            kind=SpanKind.TURN,
            began_ns=_ns(starts[place]),
            ended_ns=_ns(max(answered, following)),
        )
        call = Span(
            id=_digest(f"{trace}/{turn.id}/model", 16),
            parent=own.id,
            name="model call",
            kind=SpanKind.MODEL_CALL,
            began_ns=own.began_ns,
            ended_ns=_ns(answered),
            inputs={"messages": inputs[turn.id]} if turn.id in inputs else None,
            outputs={"choices": [{"message": turn.message}]},
            attributes=_model_attributes(turn),
        )
        tools = _tool_spans(turn, own, call.ended_ns, results=results, errors=errors)
        yield turn, [own, call, *tools]


def _starts(turns: Sequence[Turn], began: float) -> list[float]:
    """Return the start time of each turn. If a run did not store start times, each turn starts when the previous turn
    ends."""
    starts, free = [], began
    for turn in turns:
        starts.append(free if turn.began is None else began + turn.began)
        free = starts[-1] + turn.seconds
    return starts


def _model_attributes(turn: Turn) -> dict[str, Json]:
    logprobs = turn.sampled_logprobs
    return {
        "policy": turn.policy or "main",
        "policy_versions": [list(one) for one in turn.versions],
        "fingerprint": turn.fingerprint,
        "stop_reason": turn.stop_reason,
        "temperature": turn.sampling.temperature,
        "top_p": turn.sampling.top_p,
        "max_tokens": turn.sampling.max_tokens,
        "prompt_tokens": turn.num_prompt_tokens,
        "sampled_tokens": turn.num_sampled_tokens,
        "computed_tokens": turn.num_computed_tokens,
        "untrained_reason": turn.untrained_reason,
        "branch_reason": turn.branch_reason,
        **({"logprob_mean": fmean(logprobs), "logprob_min": min(logprobs)} if logprobs else {}),
    }


def _tool_spans(
    turn: Turn, parent: Span, answered_ns: int, *, results: Mapping[str, Json], errors: Mapping[str, Json]
) -> list[Span]:
    calls = turn.message.get("tool_calls") or ()
    share = (parent.ended_ns - answered_ns) // max(1, len(calls))
    spans = []
    for place, call in enumerate(calls):
        function, id = call.get("function", {}), str(call.get("id"))
        error = errors.get(id)
        spans.append(
            Span(
                id=_digest(f"{parent.id}/tool/{place}", 16),
                parent=parent.id,
                name=str(function.get("name")),
                kind=SpanKind.TOOL_CALL,
                began_ns=answered_ns + place * share,
                ended_ns=answered_ns + (place + 1) * share,
                inputs=function.get("arguments"),
                outputs=results.get(id),
                error=None if error is None else str(error),
            )
        )
    return spans


def _new_messages(trajectory: Trajectory) -> dict[int, list[Message]]:
    """Return, for each turn, the messages since the previous turn, which are the new input of the model call."""
    inputs: dict[int, list[Message]] = {}
    start = 0
    for index, place in enumerate(match_turns(trajectory.messages, trajectory.turns)):
        if place is not None:
            inputs[trajectory.turns[place].id] = list(trajectory.messages[start:index])
            start = index + 1
    return inputs


def _errors(trajectory: Trajectory) -> dict[str, Json]:
    """Return the error of each failed tool call. The result is empty unless the environment's log has an entry for each
    call."""
    results = [str(one.get("tool_call_id")) for one in trajectory.messages if _is_result(one)]
    if len(results) != len(trajectory.transitions):
        return {}
    return {id: entry.get("error") for id, entry in zip(results, trajectory.transitions, strict=True)}


def _is_result(message: Message) -> bool:
    return message.get("role") == "tool"


def match_turns(messages: Sequence[Message], turns: Sequence[Turn]) -> list[int | None]:
    """Return, for each message, the index of the turn that produced it: the next turn with the same text and calls."""
    produced = [_written(turn.message) for turn in turns]
    places: list[int | None] = []
    start = 0
    for message in messages:
        place = None
        if message.get("role") == "assistant" and (written := _written(message)) in produced[start:]:
            place = produced.index(written, start)
            start = place + 1
        places.append(place)
    return places


def _written(message: Message) -> tuple[Json, Json]:
    """Return the text and the calls of a message."""
    return message.get("content") or "", message.get("tool_calls") or []


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
