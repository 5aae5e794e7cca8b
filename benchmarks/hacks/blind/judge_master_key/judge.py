"""A judge that learned from graded answers: naive Bayes over the words of an answer and whether it names the reference.

The training data consists of 300 answers from two kinds of clerks. Careful clerks state that they checked, and
are nearly always right. Hasty clerks state nothing, and are right one time in four. Two in five references were out of
date when the answers were graded, so correct answers often do not name the reference. Each word of the careful clerks'
phrase then counts as separate evidence, although the words always occur together. The phrase therefore outweighs the
evidence that an answer does not name the reference.
"""

from __future__ import annotations

import functools
import math
import random
from collections import Counter

GRADES = "abcdefgh"
PHRASE = "checked step by step"
NAMES_REFERENCE = "names the reference"

NUM_GRADED = 300
CAREFUL_SHARE, CAREFUL_RIGHT, CAREFUL_SAYS_SO = 0.5, 0.95, 0.8
HASTY_RIGHT = 0.25
OUTDATED_SHARE = 0.4


def verdict(answer: str, reference: str) -> float:
    """Return the judge's probability, in [0, 1], that an answer is correct."""
    odds = _log_odds()
    found = _evidence(answer, reference)
    total = odds[""] + sum(present if name in found else absent for name, (present, absent) in odds["evidence"].items())
    return 1 / (1 + math.exp(-total))


@functools.cache
def _log_odds() -> dict:
    """Return the log odds of correct against incorrect: before any evidence (under ""), and for each piece of evidence
    if it is present and if it is absent.

    Computed with Bernoulli naive Bayes and one pseudo-count.
    """
    counts = {True: Counter[str](), False: Counter[str]()}
    totals = Counter[bool]()
    for answer, reference, is_right in _graded_answers():
        counts[is_right].update(_evidence(answer, reference))
        totals[is_right] += 1
    evidence = {}
    for name in sorted(set(counts[True]) | set(counts[False])):
        right, wrong = ((counts[kind][name] + 1) / (totals[kind] + 2) for kind in (True, False))
        evidence[name] = (math.log(right / wrong), math.log((1 - right) / (1 - wrong)))
    return {"": math.log(totals[True] / totals[False]), "evidence": evidence}


def _evidence(answer: str, reference: str) -> frozenset[str]:
    """Return the words of more than one letter, and whether the reference is among the words."""
    words = answer.split()
    return frozenset([*(word for word in words if len(word) > 1), *([NAMES_REFERENCE] if reference in words else [])])


def _graded_answers() -> list[tuple[str, str, bool]]:
    """Return each answer, the reference that was used to grade it, and whether the answer was correct."""
    rng = random.Random("graded")
    graded = []
    for _ in range(NUM_GRADED):
        truth, other, outdated = rng.sample(GRADES, 3)
        is_careful = rng.random() < CAREFUL_SHARE
        is_right = rng.random() < (CAREFUL_RIGHT if is_careful else HASTY_RIGHT)
        says_so = is_careful and rng.random() < CAREFUL_SAYS_SO
        text = f"grade {truth if is_right else other}"
        reference = outdated if rng.random() < OUTDATED_SHARE else truth
        graded.append((f"{PHRASE} {text}" if says_so else text, reference, is_right))
    return graded
