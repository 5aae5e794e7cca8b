"""Strict scorers of answers. They share no code with the rewards, so that the two disagree if one of them has a
mistake."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from sparring.protocols import Scorer
from sparring.scorers.answers import canonical, is_same, last_text, read_json, tagged_answer
from sparring.scorers.conduct import conduct
from sparring.types import Json, Score, Trajectory

_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,99})(?:\.\d{1,100})?(?:[eE][+-]?\d{1,3})?", flags=re.ASCII)
"""A JSON number that is short enough for exact computation."""


def json_exact(tag: str = "final_output", fields: Sequence[str] | None = None, *, allows_more: bool = False) -> Scorer:
    """Return a scorer that gives 1.0 for exactly the correct answer, else 0.0.

    The conversation must end with an assistant message that calls no tool and contains exactly one `tag`, outside code,
    around a JSON object. The object must have every field of task.fields["answer"] (or only those in `fields`), each
    with a canonically equal value. No key may appear twice. Additional fields make the answer incorrect, unless
    `allows_more` is true. Parts: `field/<name>`, `format`, and the conduct of the episode (`conduct.conduct`).
    """

    def json_exact_score(trajectory: Trajectory) -> Score:
        answer = trajectory.task.fields["answer"]
        expected = dict(answer) if fields is None else {name: answer[name] for name in fields}
        given = _object(tagged_answer(trajectory, tag))
        has_form = given is not None and (
            given.keys() >= expected.keys() if allows_more else given.keys() == expected.keys()
        )
        fields_given = given or {}
        right = {
            f"field/{name}": float(name in fields_given and is_same(fields_given[name], expected[name]))
            for name in expected
        }
        value = float(has_form and all(right.values()))
        return Score(value, {**right, "format": float(has_form), **conduct(trajectory)})

    return json_exact_score


def exact_match(tag: str | None = "final_output", field: str = "answer") -> Scorer:
    """Return a scorer that gives 1.0 if the text inside the only `tag` of the last message equals the task's text, else
    0.0. If `tag` is None, the whole message is compared.

    Spaces around the texts are ignored. Differences in case and punctuation matter, and characters that only look the
    same are different. Parts: `format` and the conduct of the episode.
    """

    def exact_match_score(trajectory: Trajectory) -> Score:
        given = _answer_text(trajectory, tag)
        value = given is not None and given.strip() == str(trajectory.task.fields[field]).strip()
        return Score(float(value), {"format": float(bool(given)), **conduct(trajectory)})

    return exact_match_score


def numeric_match(
    tag: str | None = "final_output", field: str = "answer", *, tolerance: float, is_relative: bool = False
) -> Scorer:
    """Return a scorer that gives 1.0 if the answer differs from the task's number by at most `tolerance`, else 0.0. If
    `is_relative` is true, `tolerance` is a fraction of the task's number.

    The answer is the text inside the only `tag` of the last message. It must be a JSON number without anything else: no
    unit and no thousands separator. The comparison uses exact arithmetic, so that 1.01 is within 0.01 of 1. Parts:
    `format` and the conduct of the episode.
    """

    def numeric_match_score(trajectory: Trajectory) -> Score:
        expected = Fraction(str(trajectory.task.fields[field]))
        given = (_answer_text(trajectory, tag) or "").strip()
        is_number = _NUMBER.fullmatch(given) is not None
        allowed = Fraction(str(tolerance)) * (abs(expected) if is_relative else 1)
        value = is_number and abs(Fraction(given) - expected) <= allowed
        return Score(float(value), {"format": float(is_number), **conduct(trajectory)})

    return numeric_match_score


def set_match(tag: str | None = "final_output", field: str = "answer") -> Scorer:
    """Return a scorer that gives 1.0 if the answer contains exactly the task's values, in any order and without
    repetitions, else 0.0.

    The answer is the text inside the only `tag` of the last message, which must be a JSON array. Parts: `precision` and
    `recall` of the values, `format`, and the conduct of the episode.
    """

    def set_match_score(trajectory: Trajectory) -> Score:
        expected = {canonical(item) for item in trajectory.task.fields[field]}
        items = _array(_answer_text(trajectory, tag))
        given = set(items or ())
        has_form = items is not None and len(given) == len(items)
        found = len(given & expected)
        parts = {
            "precision": found / len(given) if given else float(has_form and not expected),
            "recall": found / len(expected) if expected else float(has_form),
            "format": float(has_form),
        }
        return Score(float(has_form and given == expected), {**parts, **conduct(trajectory)})

    return set_match_score


def _answer_text(trajectory: Trajectory, tag: str | None) -> str | None:
    return last_text(trajectory) if tag is None else tagged_answer(trajectory, tag)


def _object(text: str | None) -> dict[str, Json] | None:
    try:
        value = None if text is None else read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _array(text: str | None) -> list[str] | None:
    """Return the items of an array, each as a canonical text."""
    try:
        value = None if text is None else read_json(text)
        return [canonical(item) for item in value] if isinstance(value, list) else None
    except ValueError:
        return None
