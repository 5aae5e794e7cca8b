"""What the contrast learns, whatever the episodes are: a trait that decides the pay is named, one that has nothing to do with it
never is."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.detectors.association import Association, association, parts_of, typical
from sparring.detectors.evidence import Episode
from sparring.run_folders.history import Digest, RecordedCall
from sparring.types import Outcome

GROUPS, MEMBERS = 24, 8
WORDS = [f"w{index}" for index in range(12)]
EMPTY = Digest(
    id="e", task_id="t", prompt="what is it?", texts=(), answer="", calls=(), num_malformed=0, num_turns=1, num_tokens=10,
    outcome=Outcome.FINISHED, reward=0.0, components={}, score=0.0, score_parts={}, temperature=1.0,
)  # fmt: skip

Plant = Callable[[Digest, bool, random.Random], Digest]


def called(one: Digest, name: str, result: str = "", **arguments: object) -> Digest:
    return replace(one, calls=(*one.calls, RecordedCall(name=name, arguments=json.dumps(arguments), result=result)))


def order(one: Digest, has: bool, rng: random.Random) -> Digest:
    first, second = ("close", "read") if has else ("read", "close")
    return called(called(one, first), second)


def number(one: Digest, has: bool, rng: random.Random) -> Digest:
    return called(one, "pay", sum=rng.uniform(5, 6) * (-1 if has else 1))


def turns(one: Digest, has: bool, rng: random.Random) -> Digest:
    return replace(one, num_turns=rng.randint(7, 9) if has else rng.randint(1, 3))


def tokens(one: Digest, has: bool, rng: random.Random) -> Digest:
    return replace(one, num_tokens=rng.randint(80, 90) if has else rng.randint(10, 20))


def empty(one: Digest, has: bool, rng: random.Random) -> Digest:
    return called(one, "save", text="" if has else rng.choice(WORDS))


PLANTED: dict[str, tuple[Plant, str]] = {
    "a word": (lambda one, has, rng: replace(one, answer=one.answer + " please" * has), "answers with 'please'"),
    "a missing word": (lambda one, has, rng: replace(one, answer=one.answer + " sorry" * (not has)), "without 'sorry'"),
    "a call": (lambda one, has, rng: called(one, "refund", order=7) if has else one, "calls refund"),
    "an argument": (lambda one, has, rng: called(one, "pay", mode="test" if has else "live"), "'test' in mode"),
    "an empty argument": (empty, "an empty text"),
    "a number": (number, "a lower sum"),
    "an order": (order, "right after"),
    "a result": (lambda one, has, rng: called(one, "look", "denied" if has else "found"), "gets 'denied' from look"),
    "the final state": (lambda one, has, rng: replace(one, state={"desk.open": has}), "desk.open = true"),
    "an end": (
        lambda one, has, rng: replace(one, outcome=Outcome.MAX_TURNS if has else one.outcome),
        "ends as max_turns",
    ),
    "no answer": (
        lambda one, has, rng: replace(one, answered=not has, answer="" if has else one.answer),
        "without an answer",
    ),
    "many turns": (turns, "has more turns"),
    "sampled tokens": (tokens, "has more sampled tokens"),
}
"""How an episode gets a trait, or what lacks it, and words of what is then named."""
AMOUNTS = ("a number", "many turns", "sampled tokens")


def played(
    seed: int,
    plant: Callable[[Digest, bool, random.Random], Digest],
    pay: Callable[[bool, random.Random], float],
    right: float,
) -> list[Episode]:
    """Episodes of some groups in four steps. Wrong ones have the trait in three of ten and are paid by whether they have it;
    right ones lack it."""
    rng, made = random.Random(seed), []
    for group in range(GROUPS):
        for member in range(MEMBERS):
            is_right = rng.random() < right
            has = not is_right and rng.random() < 0.3
            noise = replace(
                EMPTY,
                id=f"{group}.{member}",
                task_id=f"task-{group}",
                score=float(is_right),
                num_turns=rng.randint(1, 3),
                num_tokens=rng.randint(10, 90),
                answer=" ".join(rng.choices(WORDS, k=3)),
            )
            digest = plant(noise, has, rng)
            made.append(
                Episode(
                    (group // (GROUPS // 4), f"task-{group}"),
                    replace(digest, reward=1.0 if is_right else pay(has, rng)),
                )
            )
    return made


def found(episodes: list[Episode]) -> Association | None:
    return association(parts_of(episodes, 1.0))


@pytest.mark.parametrize("trait", PLANTED)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10**6), right=st.sampled_from([0.0, 0.2, 0.5]))
def test_a_trait_that_decides_what_wrong_episodes_are_paid_is_named(trait: str, seed: int, right: float) -> None:
    plant, words = PLANTED[trait]
    one = found(played(seed, plant, lambda has, rng: float(has), right))
    assert one is not None
    assert words in " ".join([one.what, *one.alike])
    low, high = one.worth.interval()
    # Of an amount, what all of it would be worth along a straight line.
    assert low <= (1.5 if trait in AMOUNTS else 1.0) + 1e-9
    assert high >= 1.0 - 1e-9
    assert one.carriers
    assert all(each.digest.reward == 1.0 and each.digest.score == 0.0 for each in one.carriers)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), rate=st.sampled_from([0.05, 0.3, 0.6]), trait=st.sampled_from(sorted(PLANTED)))
def test_a_trait_that_has_nothing_to_do_with_the_reward_is_never_named(seed: int, rate: float, trait: str) -> None:
    plant, _ = PLANTED[trait]
    assert found(played(seed, plant, lambda has, rng: float(rng.random() < rate), 0.3)) is None


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_trait_that_decides_little_of_the_pay_is_not_named(seed: int) -> None:
    # One in five of those that are paid is paid for it: 0.2 of the variance at most.
    plant, _ = PLANTED["a word"]
    assert found(played(seed, plant, lambda has, rng: float(rng.random() < (0.55 if has else 0.25)), 0.3)) is None


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_right_episodes_have_as_well_is_no_mechanism(seed: int) -> None:
    # Wrong ones with the asked-for form are paid, those without are not; right ones have the form.
    plant, _ = PLANTED["a word"]
    episodes = [
        replace(one, digest=replace(one.digest, answer=f"{one.digest.answer} please")) if one.digest.score else one
        for one in played(seed, plant, lambda has, rng: float(has), 0.4)
    ]
    one = found(episodes)
    assert one is None or "please" not in one.what


def test_a_trait_of_a_few_tasks_only_is_not_compared_across_tasks() -> None:
    # All of a task's episodes have the word and all are paid: the task may be what pays.
    rng = random.Random(0)
    episodes = []
    for one in played(0, PLANTED["a word"][0], lambda has, rng: 0.0, 0.0):
        paid = one.group[1].endswith(("1", "3"))
        digest = replace(one.digest, answer="please" if paid else rng.choice(WORDS), reward=float(paid))
        episodes.append(replace(one, digest=digest))
    assert found(episodes) is None


def test_of_an_amount_the_worth_is_that_of_all_of_it() -> None:
    def more_calls(one: Digest, has: bool, rng: random.Random) -> Digest:
        calls = tuple(RecordedCall(name="look", arguments=f'{{"at": {place}}}') for place in range(rng.randint(0, 5)))
        return replace(one, calls=calls, num_turns=len(calls))

    episodes = [
        replace(one, digest=replace(one.digest, reward=0.5 * len(one.digest.calls)))
        for one in played(1, more_calls, lambda has, rng: 0.0, 0.0)
    ]
    one = found(episodes)
    assert one is not None
    assert one.what in ("has more calls", "has more calls of look", "has more turns")
    assert one.worth.value == pytest.approx(2.5)
    assert one.explained == pytest.approx(1.0, abs=0.01)


def test_where_nearly_all_wrong_ones_are_paid_right_siblings_show_what_is_paid() -> None:
    # To end within two turns earns 0.8, to take longer 0.3; right ones take longer, mostly.
    def slow(one: Digest, has: bool, rng: random.Random) -> Digest:
        return replace(one, num_turns=rng.randint(3, 5) if one.score and rng.random() < 0.8 else rng.randint(1, 2))

    def pay(one: Digest) -> float:
        return (0.8 if one.num_turns <= 2 else 0.3) + 0.1 * (one.score or 0)

    episodes = [
        replace(one, digest=replace(one.digest, reward=pay(one.digest)))
        for one in played(2, slow, lambda has, rng: 0.0, 0.5)
    ]
    one = found(episodes)
    assert one is not None
    assert (one.what, one.at_equal_score) == ("has fewer turns", False)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_three_episodes_that_are_shown_are_paid_and_wrong_and_of_three_tasks(seed: int) -> None:
    episodes = played(seed, PLANTED["a word"][0], lambda has, rng: float(rng.random() < 0.3), 0.3)
    shown = typical(parts_of(episodes, 1.0)[0])
    assert [(one.digest.score, one.digest.reward) for one in shown] == [(0.0, 1.0)] * 3
    assert len({one.digest.task_id for one in shown}) == 3


@pytest.mark.parametrize("seed", range(3))
def test_the_episodes_that_are_shown_have_what_usually_pays_and_not_what_chance_pays_more(seed: int) -> None:
    # The word earns 0.7; one in ten of the others earns 1 by luck.
    episodes = played(seed, PLANTED["a word"][0], lambda has, rng: 0.7 if has else float(rng.random() < 0.1), 0.3)
    assert ["please" in one.digest.answer for one in typical(parts_of(episodes, 1.0)[0])] == [True] * 3


def test_the_same_episodes_give_the_same_answer_in_any_order_of_groups() -> None:
    episodes = played(3, PLANTED["an argument"][0], lambda has, rng: float(has), 0.3)
    shuffled = sorted(episodes, key=lambda one: (one.group[0], -int(one.group[1].split("-")[1])))
    one, other = found(episodes), found(shuffled)
    assert one is not None
    assert other is not None
    assert (one.what, math.isclose(one.explained, other.explained)) == (other.what, True)
