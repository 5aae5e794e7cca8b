"""What of an episode may be trained, derived from what its clients saw; independent of sessions and gateway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparring.types import Message, Turn


@dataclass(frozen=True)
class Attempt:
    """One request as its client saw it. Requests that a client sends again until one is answered share a number."""

    number: int
    history: tuple[str, ...]
    """The tools and the content of each message of the request; each answer of the policy is different."""
    answer: str
    """What came of the answer."""
    is_whole: bool
    """Whether all of it came."""
    is_unsure: bool = False
    """Whether no client can know if it counts: the episode ended meanwhile, or bytes may have been on their way."""


def render_answer(message: Message) -> str:
    """Return the text of an assistant's message and its calls; the order of keys and the ids of calls mean nothing."""
    calls = [call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return "|".join([(message.get("content") or "").strip(), *calls])


def violations(attempts: Sequence[Attempt], turns: Sequence[Turn]) -> list[str]:
    """What is wrong with the turns of an episode; those that are received are the ones that are trained."""
    found: list[str] = []
    texts = {turn.id: render_answer(turn.message) for turn in turns}
    trained = {texts[turn.id] for turn in turns if turn.is_received}
    continued = {texts[turn.parent] for turn in turns if turn.parent is not None}
    whole = {one.answer for one in attempts if one.is_whole}
    unsure = {one.answer for one in attempts if one.is_unsure}
    sure = {one.answer for one in attempts if one.is_whole and not one.is_unsure}
    unheard = any(one.is_unsure and not one.is_whole for one in attempts)
    if len(set(texts.values())) < len(turns):
        found.append("an answer is recorded twice")
    for answer in sure - trained:
        found.append(f"{answer} was received and is not trained")
    for answer in trained - whole - continued - unsure:
        if not unheard:
            found.append(f"{answer} is trained, and no client has it")

    # A client may send the same request several times and mean it; a request that it only sends again is one.
    for history in {one.history for one in attempts}:
        same = [one for one in attempts if one.history == history]
        most = len({one.number for one in same}) + sum(one.is_unsure for one in same)
        answers = {one.answer for one in same if one.answer in trained and one.answer not in continued}
        if len(answers) > most:
            found.append(f"{len(answers)} answers to {most} requests are trained: {sorted(answers)}")

    # Each turn continues the longest conversation that its request begins with.
    asked = {one.answer: one.history for one in attempts if one.answer}
    by_id = {turn.id: turn for turn in turns}
    for turn in turns:
        if texts[turn.id] not in asked:
            continue
        history = asked[texts[turn.id]]
        begun = [
            (len(before), answer)
            for answer, before in asked.items()
            if answer in texts.values() and history[: len(before) + 1] == (*before, answer)
        ]
        expected = max(begun)[1] if begun else None
        parent = None if turn.parent is None else by_id[turn.parent]
        if (None if parent is None else texts[parent.id]) != expected:
            found.append(f"{texts[turn.id]} continues {parent and texts[parent.id]}, not {expected}")
        played = () if parent is None else parent.prompt_ids + parent.token_ids
        if turn.prompt_ids[: len(played)] != played:
            found.append(f"{texts[turn.id]} does not begin with the ids that it continues")
    return found
