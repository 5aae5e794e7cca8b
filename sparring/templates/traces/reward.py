"""The reward, which the policy is trained on. TODO: replace it with what a good episode is worth to you.

It imitates the log: it compares an episode with the conversation of the same task that counts as good. It cannot reward
an answer that is better than the logged one, or right in other words without a number in it.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sparring import Trajectory

TOOLS = json.loads((Path(__file__).parent / "tools.json").read_text("utf-8"))
WRITING = {row["function"]["name"] for row in TOOLS if row["writes"]}
SHORT = 8
NEGATION = re.compile(r"\b(?:no|not|never|none|nor|cannot|without)\b|n['’]t\b", re.IGNORECASE)


def reward(episode: Trajectory) -> tuple[float, dict[str, float]]:
    """Return 1 if every answer agrees with the logged answer and the same changes were made, and 0 otherwise.

    Metrics are charted.
    """
    expected = episode.task.fields["answers"]
    asked = "\n".join(str(one["content"]) for one in episode.messages if one["role"] == "user")
    given = [
        str(one["content"]) for one in episode.messages if one["role"] == "assistant" and not one.get("tool_calls")
    ]
    matches = [agrees(answer, logged, asked) for answer, logged in zip(given, expected, strict=False)]
    answered = episode.outcome == "finished" and len(given) == len(expected) and all(matches)
    changed = changes_made(episode) == Counter(map(spelled, episode.task.fields["writes"]))
    return float(answered and changed), {"answered": float(answered), "changed": float(changed)}


def agrees(answer: str, logged: str, asked: str) -> bool:
    """Return whether an answer agrees with the logged one.

    A logged answer of at most SHORT words, or without a value that the user did not give, must be repeated. A longer one
    must have the same values: each that the user did not give, no other, and as many negations.
    """
    new = values_in(logged) - values_in(asked)
    if not new or len(logged.split()) <= SHORT:
        return answer.split() == logged.split()
    same_values = new <= values_in(answer) <= values_in(logged) | values_in(asked)
    return same_values and len(NEGATION.findall(answer)) == len(NEGATION.findall(logged))


def values_in(text: str) -> set[str]:
    """Return the numbers and identifiers of a text, which are its words with a digit. 1,200.0 is the same as 1200."""
    words = (word.strip(".,:-/") for word in re.findall(r"[\w.,:/@#+-]+", text.lower()))
    return {_number(word.replace(",", "")) for word in words if re.search(r"\d", word)}


def _number(word: str) -> str:
    return word.rstrip("0").rstrip(".") if re.fullmatch(r"\d+\.\d+", word) else word


def changes_made(episode: Trajectory) -> Counter[str]:
    """Return the successful calls of tools that write."""
    return Counter(spelled(one) for one in episode.transitions if one["tool"] in WRITING and one["error"] is None)


def spelled(call: Mapping) -> str:
    return json.dumps([call["tool"], call["arguments"]], sort_keys=True)
