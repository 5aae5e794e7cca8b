"""The scorer, which grades evaluations and is never trained on. TODO: replace it with your own measure of success.

It imitates the log by the same rule as the reward, but shares no code with it, so that a mistake in one of them shows as
a disagreement.
"""

from decimal import Decimal, InvalidOperation

from sparring import Trajectory

PUNCTUATION = ".,:-/"
INSIDE = PUNCTUATION + "@#+_"
SHORT = 8
NEGATIONS = frozenset({"no", "not", "never", "none", "nor", "cannot", "without"})


def scorer(episode: Trajectory) -> float:
    """Return 1 if the episode gives the logged answers and leaves the changes of the log, and 0 otherwise."""
    fields, state = episode.task.fields, episode.final_state or {}
    by_role = [(one["role"], str(one["content"])) for one in episode.messages if not one.get("tool_calls")]
    replies = [text for role, text in by_role if role == "assistant"]
    known = facts("\n".join(text for role, text in by_role if role == "user"))
    if episode.outcome != "finished" or len(replies) != len(fields["answers"]):
        return 0.0
    if not all(is_same(*pair, known) for pair in zip(replies, fields["answers"], strict=True)):
        return 0.0
    left = list(state.get("writes", ()))
    for change in fields["writes"]:
        if {"tool": change["tool"], "arguments": change["arguments"]} not in left:
            return 0.0
        left.remove({"tool": change["tool"], "arguments": change["arguments"]})
    return float(not left)


def is_same(reply: str, logged: str, known: frozenset) -> bool:
    """Return whether a reply agrees with the logged one.

    Up to SHORT words, and without facts that are new to the user, the words must be equal. Otherwise, the facts must be
    the same, apart from those that the user knows, with as many negations.
    """
    wanted, got = facts(logged), facts(reply)
    if wanted <= known or len(logged.split()) <= SHORT:
        return " ".join(reply.split()) == " ".join(logged.split())
    return wanted - known <= got and got <= wanted | known and num_negations(reply) == num_negations(logged)


def num_negations(text: str) -> int:
    kept = "".join(
        letter if letter.isalnum() else " " for letter in text.lower().replace("n't", " not").replace("n’t", " not")
    )
    return sum(word in NEGATIONS for word in kept.split())


def facts(text: str) -> frozenset:
    """Return the words with a digit, as numbers where they are numbers."""
    kept = "".join(letter if letter.isalnum() or letter in INSIDE else " " for letter in text.lower())
    words = [word.strip(PUNCTUATION).replace(",", "") for word in kept.split()]
    return frozenset(as_number(word) for word in words if any(letter.isdigit() for letter in word))


def as_number(word: str) -> Decimal | str:
    try:
        return Decimal(word) if set(word) <= set("0123456789.") else word
    except InvalidOperation:
        return word
