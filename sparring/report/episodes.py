"""The episodes of a run for the page's episode viewer: which episodes fit into the page, and the content of each.

Episodes on which reward and scorer disagree come first, then failures, then correct episodes. Within each kind,
episodes with a failed sibling come first. A page contains as many episodes as fit into its size limit, and counts the
others.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from sparring.pages.html import data_text
from sparring.report.episode_index import (
    SPLITS,
    EpisodeFile,
    EpisodeIndex,
    Known,
    Prepared,
    is_right,
    policy_of,
    why_no_advantages,
)
from sparring.report.reading import Record
from sparring.run_folders.digests import version_of
from sparring.run_folders.stored import read_trajectories_at
from sparring.tracking.spans import match_turns
from sparring.types import Json, Message, StopReason, Trajectory

MAX_BYTES = 9 * 2**20
"""The size limit of the conversations in a page, in bytes."""
MAX_TOKEN_BYTES = 4 * 2**20
"""The size limit of the tokens of these conversations, which keeps the page below 15 MiB."""
MAX_CHARACTERS = 20_000
"""The length limit of one string."""
MAX_FIELD_CHARACTERS = 4_000
"""The length limit of a task's fields."""
BATCH = 2000
"""The number of episodes that are read at a time."""
MOST_MISSES = 500
"""The number of episodes that do not fit after which the page counts as full."""
LOGPROB_UNITS = 100
"""The factor by which log-probabilities are multiplied to store them as integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """The episodes of a run that the page shows."""

    shown: Sequence[Json]
    """The episodes, in the format and order that the reader script expects."""
    vocabulary: Sequence[str]
    """The tokens that occur in the shown episodes."""
    num_played: int
    left_out: Mapping[str, int]
    """The numbers of omitted episodes, by description. Empty if all episodes are shown."""
    without_tokens: int
    """The number of shown episodes whose tokens did not fit or are not known."""
    why_no_advantages: str | None
    """The reason why training episodes have no advantages, or None if they have advantages."""
    seen_in_training: int
    """The number of held-out tasks whose exact content was trained on. Without held-out tasks, validation tasks are
    counted."""


def episodes(
    record: Record,
    *,
    index: EpisodeIndex | None = None,
    max_bytes: int = MAX_BYTES,
    max_token_bytes: int = MAX_TOKEN_BYTES,
) -> Episodes:
    """Select and prepare the episodes for the page. Raises DataError if a file is damaged.

    The index classifies all episodes, and reads only the files that are new since its last use. Then the episodes are
    prepared in order of importance until the page is full.
    """
    index = index or EpisodeIndex()
    known = index.read(record)
    chosen = _chosen(known, max_bytes, record, index)
    prepared = [index.prepared[one.place] for one in chosen]
    tokens = _Tokens(record.vocabulary, max_token_bytes)
    for one in prepared:
        tokens.add(one.trajectory, one.content)
    kept = {one.id for one in chosen}
    return Episodes(
        shown=[one.content for one in prepared],
        vocabulary=tokens.texts,
        num_played=len(known),
        left_out=_left_out(one for one in known if one.id not in kept),
        without_tokens=tokens.num_without,
        why_no_advantages=why_no_advantages(record.config),
        seen_in_training=index.num_seen_in_training,
    )


def _prepare(wanted: Sequence[Known], record: Record) -> dict[tuple[Path, int], Prepared]:
    """Read and prepare these episodes. Raises DataError if a line is damaged."""
    by_file: dict[EpisodeFile, list[Known]] = {}
    for one in wanted:
        by_file.setdefault(one.file, []).append(one)
    found = {}
    for file, known in by_file.items():
        played = read_trajectories_at(file.path, [one.offset for one in known])
        for one, trajectory in zip(known, played, strict=True):
            content = _episode(trajectory, record, one)
            found[one.place] = Prepared(trajectory, content, len(data_text(content).encode()))
    return found


def _chosen(known: Sequence[Known], max_bytes: int, record: Record, index: EpisodeIndex) -> list[Known]:
    """Return the episodes that fit, in the order in which the page shows them, and prepare them.

    Within a kind, the choice is random with a fixed seed, so that no step is preferred. The search ends when
    `MOST_MISSES` episodes did not fit.
    """
    rng = random.Random(0)
    failed = {one.group for one in known if one.kind < 2}
    order = {one.id: rng.random() for one in known}
    ranked = sorted(known, key=lambda one: (one.kind, one.group not in failed, SPLITS.index(one.split), order[one.id]))
    chosen: list[Known] = []
    prepared: dict[tuple[Path, int], Prepared] = {}
    used = num_missed = start = 0
    while start < len(ranked) and num_missed < MOST_MISSES:
        batch = ranked[start : start + BATCH]
        start += len(batch)
        found = _prepare([one for one in batch if one.place not in index.prepared], record) | index.prepared
        for one in batch:
            if used + found[one.place].num_bytes <= max_bytes:
                used += found[one.place].num_bytes
                chosen.append(one)
                prepared[one.place] = found[one.place]
            else:
                num_missed += 1
    index.prepared = prepared
    places = {file: place for place, file in enumerate(dict.fromkeys(one.file for one in known))}
    played = {one.id: place for place, one in enumerate(known)}
    return sorted(chosen, key=lambda one: (one.kind, places[one.file], -one.policy, played[one.id]))


def _left_out(left: Iterable[Known]) -> dict[str, int]:
    names = ("disagreements of reward and scorer", "failures", "correct episodes")
    counts = Counter(one.kind for one in left)
    return {names[kind]: counts[kind] for kind in sorted(counts)}


def _episode(one: Trajectory, record: Record, known: Known) -> dict[str, Json]:
    messages, aside = _messages(one)
    disagreement = known.disagreement
    shown: dict[str, Json] = {
        "id": one.id,
        "task": one.task.id,
        "split": known.split,
        "number": known.file.number,
        "policy": policy_of(one.id, version_of(one), known.split),
        "attempt": one.attempt,
        "outcome": one.outcome.value,
        "right": is_right(one, record),
        "reward": None if one.reward is None else _finite(one.reward.total),
        "score": _finite(one.score),
        "components": {} if one.reward is None else _numbers(one.reward.components),
        "parts": _numbers(one.score_parts),
        "seconds": round(one.seconds, 2),
        "messages": messages,
        "turns": [_turn(one, place, known.advantages) for place in range(len(one.turns))],
        "fields": _cut(json.dumps(one.task.fields, ensure_ascii=False, default=str), MAX_FIELD_CHARACTERS),
    }
    if disagreement is not None:
        shown["disagreement"] = {"kind": disagreement.kind, "fault": _cut(disagreement.fault, MAX_FIELD_CHARACTERS)}
    if one.error:
        shown["error"] = _cut(one.error, MAX_FIELD_CHARACTERS)
    if aside:
        shown["aside"] = aside
    return shown


def _turn(one: Trajectory, place: int, advantages: Sequence[float] | None) -> dict[str, Json]:
    turn = one.turns[place]
    shown: dict[str, Json] = {"num": turn.num_sampled_tokens}
    if one.reward is not None and one.reward.per_turn is not None:
        shown["reward"] = _finite(one.reward.per_turn.get(turn.id, 0.0))
    if advantages is not None:
        shown["advantage"] = _finite(advantages[place])
    if turn.sampled_logprobs:
        shown["logprob"] = _finite(fmean(turn.sampled_logprobs))
    if turn.stop_reason is StopReason.LENGTH:
        shown["cut"] = True
    if turn.untrained_reason is not None and one.id.startswith("train/"):
        shown["untrained"] = turn.untrained_reason.value
    return shown


def _messages(one: Trajectory) -> tuple[list[Json], list[Json]]:
    """Return the conversation, and the turns that are not in it (branches and side requests). Each entry contains the
    index of its turn."""
    places = match_turns(one.messages, one.turns)
    num_tools = sum(message.get("role") == "tool" for message in one.messages)
    errors = iter(
        [transition.get("error") for transition in one.transitions] if len(one.transitions) == num_tools else ()
    )
    shown = []
    for message, place in zip(one.messages, places, strict=True):
        error = next(errors, None) if message.get("role") == "tool" else None
        shown.append(_message(message, place, error))
    inside = set(places)
    aside = [_message(turn.message, place, None) for place, turn in enumerate(one.turns) if place not in inside]
    return shown, aside


def _message(message: Message, place: int | None, error: Json) -> dict[str, Json]:
    content = message.get("content")
    shown: dict[str, Json] = {"role": str(message.get("role"))}
    if text := _cut(content if isinstance(content, str) else _parts(content)):
        shown["text"] = text
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        shown["reasoning"] = _cut(str(reasoning))
    if calls := message.get("tool_calls"):
        shown["calls"] = [_call(call) for call in calls]
    if malformed := message.get("malformed_tool_calls"):
        shown["malformed"] = [_cut(_parts(call)) for call in malformed]
    if place is not None:
        shown["turn"] = place
    if error:
        shown["error"] = str(error)
    return shown


def _call(call: Json) -> list[str]:
    """Return the name and the arguments of a tool call as text."""
    function = call.get("function", {}) if isinstance(call, Mapping) else {}
    arguments = function.get("arguments")
    return [_cut(str(function.get("name"))), _cut(arguments if isinstance(arguments, str) else _parts(arguments))]


def _parts(content: Json) -> str:
    """Return content that is not a string as text. The parts of a message are joined; anything else is written as
    JSON."""
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "\n".join(str(part["text"]) for part in content)
    return json.dumps(content, ensure_ascii=False, default=str)


def _cut(text: str, most: int = MAX_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[:most]} [... {len(text) - most} more characters in the run's folder]"


def _numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    return {str(name): _finite(value) for name, value in values.items()}


def _finite(value: float | None) -> float | None:
    """Return the value rounded to four digits, or None if it is not finite, because JSON cannot represent such numbers."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None


class _Tokens:
    """The tokens of episodes, as indexes into a table of all tokens in these episodes, up to a size limit."""

    def __init__(self, vocabulary: Sequence[str] | None, max_bytes: int) -> None:
        self._vocabulary = vocabulary
        self._left = max_bytes
        self._places: dict[int, int] = {}
        self.texts: list[str] = []
        self.num_without = 0

    def add(self, one: Trajectory, shown: dict[str, Json]) -> None:
        """Add the tokens of an episode to its content, if they fit."""
        size = 8 * sum(len(turn.token_ids) for turn in one.turns)
        fits = self._vocabulary is not None and 0 < size <= self._left
        if fits:
            self._left -= size
        else:
            self.num_without += 1
        for turn, place in zip(one.turns, shown["turns"], strict=True):
            place.pop("tokens", None)  # of an earlier page
            place.pop("logprobs", None)
            if fits:
                place["tokens"] = [self._place(token_id) for token_id in turn.token_ids]
                place["logprobs"] = [
                    round(LOGPROB_UNITS * value) if math.isfinite(value) else None for value in turn.sampled_logprobs
                ]

    def _place(self, token_id: int) -> int:
        if token_id not in self._places:
            self._places[token_id] = len(self.texts)
            known = self._vocabulary or ()
            self.texts.append(str(known[token_id]) if 0 <= token_id < len(known) else f"[{token_id}]")
        return self._places[token_id]
