"""Tasks that are nearly the same are distinguished from tasks of one template, in thousands of them within seconds."""

from __future__ import annotations

import random
import time

from sparring.checks.evidence.similarity import find_near_pairs, normalize_text

WORDS = [
    f"{first}{second}"
    for first in "bcdfgklmnprst"
    for second in ("ale", "orn", "ith", "und", "eck", "ain", "ost", "urb")
]


def sentence(rng: random.Random, num: int = 30) -> str:
    return " ".join(rng.choices(WORDS, k=num))


def test_case_width_punctuation_and_spaces_do_not_count() -> None:
    assert normalize_text("Inspect  Ａ-12,\n now!") == normalize_text("inspect a12 NOW") == "inspect a12 now"


def test_a_prompt_with_a_please_is_the_same_and_one_in_another_order_is_not() -> None:
    texts = ["I want tea and milk.", "I want milk and tea.", "Please, I want tea and milk, thanks!"]
    pairs = find_near_pairs(texts, [True, True, False])
    assert [(pair.left, pair.right, pair.similarity) for pair in pairs] == [(0, 2, 1.0)]


def test_one_changed_word_in_thirty_is_nearly_the_same() -> None:
    rng = random.Random(0)
    texts = [sentence(rng) for _ in range(20)]
    words = texts[3].split()
    words[15] = "another"
    pairs = find_near_pairs([*texts, " ".join(words)], [True] * 20 + [False])
    # 28 shingles of three words each; three hold the changed word: 25 in common of 31.
    assert [(pair.left, pair.right) for pair in pairs] == [(3, 20)]
    assert abs(pairs[0].similarity - 25 / 31) < 1e-9


def test_tasks_of_one_template_that_name_other_things_are_different() -> None:
    rng = random.Random(1)

    def order() -> str:
        return (
            f"Order {rng.randint(1000, 9999)} of {rng.choice(WORDS).title()} at depot {rng.randint(1, 99)}: "
            f"{rng.randint(1, 50)} boxes, insured for {rng.randint(100, 999)} pounds, due on day {rng.randint(1, 31)}. "
            "Follow the procedure for orders that are late, and list what the customer hears."
        )

    texts = [order() for _ in range(400)]
    assert find_near_pairs(texts, [place < 300 for place in range(400)]) == []


def test_the_same_words_about_another_number_are_different() -> None:
    rng = random.Random(2)
    texts = [f"{sentence(rng)} case {number}" for number in range(20)]
    texts.append(texts[3].replace("case 3", "case 77"))
    assert find_near_pairs(texts, [True] * 20 + [False]) == []


def test_ten_thousand_tasks_take_seconds() -> None:
    rng = random.Random(3)
    procedure = "\n".join(sentence(rng) for _ in range(40))
    texts = [f"{procedure}\n{sentence(rng, 40)}" for _ in range(10_000)]
    copied = rng.sample(range(8_000), 50)
    for place, source in zip(range(9_000, 9_050), copied, strict=True):
        texts[place] = texts[source].replace(" ", "  ") + " please"
    began = time.process_time()
    pairs = find_near_pairs(texts, [place < 8_000 for place in range(10_000)])
    assert time.process_time() - began < 20
    assert sorted(pair.left for pair in pairs) == sorted(copied)
