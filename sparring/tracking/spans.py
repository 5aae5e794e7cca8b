"""An episode as a tree of spans, for systems that show traces: the episode, its turns, and in each the model call and the
tool calls.

    episode                 began ................................................ over
      turn 0                began ................ turn 1 began
        model call          began ...... answered
        tool `look_up`                  ........ turn 1 began
      turn 1                                       began .......................... over

What a model call took is measured. Tool calls share what is left until the next turn, since nobody times each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean

from sparring.types import Json, Message, Trajectory, Turn


class SpanKind(StrEnum):
    """What a span is about, by the names that MLflow gives them."""

    EPISODE = "AGENT"
    TURN = "CHAIN"
    MODEL_CALL = "CHAT_MODEL"
    TOOL_CALL = "TOOL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took time. Times are in nanoseconds since 1970."""

    id: str
    """16 hexadecimal digits that follow from the trace and its place in it, so that to send it twice changes nothing."""
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
class Judgement:
    """A number that an episode, or a turn of it, was given."""

    name: str
    value: float
    source: str
    """`reward` or `scorer`."""
    span: str | None = None
    """The span of the turn; None for the whole episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """An episode's spans, the root first, and how it was judged."""

    id: str
    """32 hexadecimal digits that follow from the run and the episode."""
    spans: tuple[Span, ...]
    judgements: tuple[Judgement, ...]


def trace_of(trajectory: Trajectory, *, run: str, stored: float) -> Trace:
    """`run` is the name of the run there, `stored` when the episode was written, in seconds since 1970: of an episode from a
    run that did not keep its beginning that counts as the end."""
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
    spans, judgements = [root], list(_judgements(trajectory))
    per_turn = {} if trajectory.reward is None else trajectory.reward.per_turn or {}
    for turn, own in _turns(trajectory, trace, root, began):
        spans += own
        if turn.id in per_turn:
            judgements.append(
                Judgement(name="turn_reward", value=per_turn[turn.id], source="reward", span=own[0].id)
            )  # fmt: skip
    return Trace(id=trace, spans=tuple(spans), judgements=tuple(judgements))


def _judgements(trajectory: Trajectory) -> Iterator[Judgement]:
    if (reward := trajectory.reward) is not None:
        yield Judgement(name="reward", value=reward.total, source="reward")
        for name, value in reward.components.items():
            yield Judgement(name=f"reward/{name}", value=value, source="reward")
    if trajectory.score is not None:
        yield Judgement(name="score", value=trajectory.score, source="scorer")
        for name, value in trajectory.score_parts.items():
            yield Judgement(name=f"score/{name}", value=value, source="scorer")


def _turns(trajectory: Trajectory, trace: str, root: Span, began: float) -> Iterator[tuple[Turn, list[Span]]]:
    """Each turn with its spans: itself, the model call, the tool calls."""
    turns = sorted((*trajectory.turns, *trajectory.other_turns), key=lambda turn: turn.id)
    starts = _starts(turns, began)
    heard = _heard(trajectory)
    results = {str(one.get("tool_call_id")): one.get("content") for one in trajectory.messages if _is_result(one)}
    errors = _errors(trajectory)
    for place, turn in enumerate(turns):
        answered = starts[place] + turn.seconds
        following = starts[place + 1] if place + 1 < len(turns) else began + trajectory.seconds
        name = f"turn {turn.id}" if turn.policy is None else f"turn {turn.id} ({turn.policy})"
        own = Span(
            id=_digest(f"{trace}/{turn.id}", 16), parent=root.id, name=name, kind=SpanKind.TURN,
            began_ns=_ns(starts[place]), ended_ns=_ns(max(answered, following)),
        )  # fmt: skip
        call = Span(
            id=_digest(f"{trace}/{turn.id}/model", 16), parent=own.id, name="model call", kind=SpanKind.MODEL_CALL,
            began_ns=own.began_ns, ended_ns=_ns(answered),
            inputs={"messages": heard[turn.id]} if turn.id in heard else None,
            outputs={"choices": [{"message": turn.message}]}, attributes=_model_attributes(turn),
        )  # fmt: skip
        tools = _tool_spans(turn, own, call.ended_ns, results=results, errors=errors)
        yield turn, [own, call, *tools]


def _starts(turns: Sequence[Turn], began: float) -> list[float]:
    """When each turn was asked for; of runs that did not keep it, as if one had followed the other at once."""
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
                id=_digest(f"{parent.id}/tool/{place}", 16), parent=parent.id, name=str(function.get("name")),
                kind=SpanKind.TOOL_CALL, began_ns=answered_ns + place * share, ended_ns=answered_ns + (place + 1) * share,
                inputs=function.get("arguments"), outputs=results.get(id), error=None if error is None else str(error),
            )
        )  # fmt: skip
    return spans


def _heard(trajectory: Trajectory) -> dict[int, list[Message]]:
    """By turn, the messages that came since the turn before it: what each model call was told that was new."""
    heard: dict[int, list[Message]] = {}
    begin = 0
    for index, place in enumerate(turn_places(trajectory.messages, trajectory.turns)):
        if place is not None:
            heard[trajectory.turns[place].id] = list(trajectory.messages[begin:index])
            begin = index + 1
    return heard


def _errors(trajectory: Trajectory) -> dict[str, Json]:
    """By tool call what was wrong with it, where the environment's own log has an entry for each."""
    results = [str(one.get("tool_call_id")) for one in trajectory.messages if _is_result(one)]
    if len(results) != len(trajectory.transitions):
        return {}
    return {id: entry.get("error") for id, entry in zip(results, trajectory.transitions, strict=True)}


def _is_result(message: Message) -> bool:
    return message.get("role") == "tool"


def turn_places(messages: Sequence[Message], turns: Sequence[Turn]) -> list[int | None]:
    """Of each message the place of the turn that said it: the next one with the same words and calls."""
    said = [_words(turn.message) for turn in turns]
    places: list[int | None] = []
    begin = 0
    for message in messages:
        place = None
        if message.get("role") == "assistant" and (words := _words(message)) in said[begin:]:
            place = said.index(words, begin)
            begin = place + 1
        places.append(place)
    return places


def _words(message: Message) -> str:
    return json.dumps([message.get("content") or "", message.get("tool_calls") or []], sort_keys=True, default=str)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
