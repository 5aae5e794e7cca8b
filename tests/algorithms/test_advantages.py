"""Advantages against numbers derived by hand from the formulas, and the laws that they obey.

Fixture A: two groups of four, with rewards [1, 0, .5, 0] and [1, 1, 0, 1] and trained lengths [3, 6, 4, 2 | 5, 1, 6, 3].
Fixture C: rewards per turn [[0, 0, 1], [0, 1], [1, 0, 0, 0]].
"""

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sparring.algorithms.advantages import ADVANTAGES, Rewarded
from sparring.algorithms.choice import PER_TURN, SILENT_WHEN_EQUAL, UNGROUPED
from sparring.errors import DataError

REWARDS = ([1.0, 0.0, 0.5, 0.0], [1.0, 1.0, 0.0, 1.0])
LENGTHS = ([3, 6, 4, 2], [5, 1, 6, 3])
BINARY = ("pass_at_k",)
"""Methods that take rewards of 0 and 1 only."""


def played(turn_rewards, turn_tokens=None):
    tokens = turn_tokens or [1] * len(turn_rewards)
    return Rewarded(total=math.fsum(turn_rewards), turn_rewards=tuple(turn_rewards), turn_tokens=tuple(tokens))


FIXTURE_A = [
    [played([reward], [length]) for reward, length in zip(*rows, strict=True)]
    for rows in zip(REWARDS, LENGTHS, strict=True)
]
FIXTURE_C = [[played([0, 0, 1]), played([0, 1]), played([1, 0, 0, 0])]]


def flat(name, groups=FIXTURE_A, **settings):
    """One number a trajectory, for trajectories of one turn."""
    return [turns[0] for members in ADVANTAGES[name](groups, **settings) for turns in members]


def test_group_based_divides_by_the_unbiased_standard_deviation():
    # First group: mean 0.375, squared distances sum to 0.6875, std = sqrt(0.6875 / 3) = 0.478714, 0.625 / 0.478715.
    # Second group: mean 0.75, std = sqrt(0.75 / 3) = 0.5.
    expected = [1.30558, -0.783348, 0.261116, -0.783348, 0.499999, 0.499999, -1.499997, 0.499999]
    assert flat("group_based") == pytest.approx(expected, abs=1e-6)


def test_group_based_with_the_population_standard_deviation():
    # sqrt(0.6875 / 4) = 0.414578 and sqrt(0.75 / 4) = 0.433013.
    expected = [0.625 / 0.414579, -0.375 / 0.414579, 0.125 / 0.414579, -0.375 / 0.414579]
    expected += [0.25 / 0.433014, 0.25 / 0.433014, -0.75 / 0.433014, 0.25 / 0.433014]
    assert flat("group_based", advantage_std="population") == pytest.approx(expected, abs=1e-5)


def test_group_based_without_normalization_is_the_distance_from_the_mean():
    expected = [0.625, -0.375, 0.125, -0.375, 0.25, 0.25, -0.75, 0.25]
    assert flat("group_based", advantage_normalization=False) == pytest.approx(expected, abs=1e-6)


def test_rloo_compares_with_the_mean_of_the_others():
    # The first: 1 - (0 + 0.5 + 0) / 3.
    expected = [5 / 6, -0.5, 1 / 6, -0.5, 1 / 3, 1 / 3, -1.0, 1 / 3]
    assert flat("rloo") == pytest.approx(expected, abs=1e-6)


def test_opo_weights_the_baseline_by_length():
    # First group: (3 * 1 + 4 * 0.5) / 15 = 1/3. Second: (5 + 1 + 3) / 15 = 0.6.
    expected = [2 / 3, -1 / 3, 1 / 6, -1 / 3, 0.4, 0.4, -0.6, 0.4]
    assert flat("opo") == pytest.approx(expected, abs=1e-6)


def test_gpg_scales_by_the_share_of_rewards_that_are_not_zero():
    # 5 of 8 rewards are not 0: alpha = 1.6.
    expected = [1.0, -0.6, 0.2, -0.6, 0.4, 0.4, -1.2, 0.4]
    assert flat("gpg") == pytest.approx(expected, abs=1e-6)


def test_gpg_of_a_batch_without_rewards_is_zero():
    assert flat("gpg", [[played([0.0]), played([0.0])]]) == [0.0, 0.0]


def test_grpo_passk_rewards_the_lead_of_the_best():
    # First group: lead 0.5, std 0.478714. Second: three are best, so none leads.
    assert flat("grpo_passk") == pytest.approx([1.044464, 0, 0, 0, 0, 0, 0, 0], abs=1e-6)
    assert flat("grpo_passk", advantage_normalization=False) == pytest.approx([0.5, 0, 0, 0, 0, 0, 0, 0], abs=1e-6)


def test_reinforce_pp_whitens_rewards_over_tokens():
    # 30 tokens; mean = (3 * 1 + 4 * 0.5 + 5 + 1 + 3) / 30 = 14/30. Squared distances, token by token:
    # 12 at 1 (8/15), 4 at 0.5 (1/30), 14 at 0 (7/15): 3.413333 + 0.004444 + 3.048889 = 6.466667; variance / 29 = 0.222989.
    expected = [1.129425, -0.988247, 0.070589, -0.988247, 1.129425, 1.129425, -0.988247, 1.129425]
    assert flat("reinforce_pp") == pytest.approx(expected, abs=1e-6)


def test_reinforce_pp_baseline_whitens_what_the_group_leaves():
    # Centred rewards as in group_based; their mean over the 30 tokens is (1.875 - 2.25 + 0.5 - 0.75 + 1.25 + 0.25 - 4.5
    # + 0.75) / 30 = -0.095833.
    expected = [1.581928, -0.612654, 0.484637, -0.612654, 0.75896, 0.75896, -1.435623, 0.75896]
    assert flat("reinforce_pp_baseline") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("num_right", "right", "wrong"),
    [
        # n = 4, k = 2, one right: rho = 1 - C(3,2) / C(4,2) = 0.5, sigma = 0.5; wrong: (0.5 - C(2,1) / C(3,1)) / 0.5.
        (1, 0.999998, -0.333333),
        # Two right: rho = 1 - 1/6, sigma = sqrt(5) / 6; right: 1 / sqrt(5), wrong: (1/6 - 1/3) / sigma.
        (2, 0.447212, -0.447212),
        # Three right: no pair misses, so pass@2 cannot rise.
        (3, 0.0, 0.0),
    ],
)
def test_pass_at_k_is_the_mean_over_all_subsets(num_right, right, wrong):
    rewards = [1.0] * num_right + [0.0] * (4 - num_right)
    found = flat("pass_at_k", [[played([reward]) for reward in rewards]], pass_k=2)
    assert found == pytest.approx([right] * num_right + [wrong] * (4 - num_right), abs=1e-6)


def test_pass_at_k_refuses_rewards_between_0_and_1():
    with pytest.raises(DataError, match=r"counts successes, but a reward is 0\.5. Return rewards of 0 and 1"):
        ADVANTAGES["pass_at_k"](FIXTURE_A)


def test_a_group_that_lost_too_many_members_for_pass_at_k_teaches_nothing_and_the_others_go_on():
    lossy, whole = [played([1.0]), played([0.0])], [played([1.0]), *[played([0.0])] * 3]
    first, second = ADVANTAGES["pass_at_k"]([lossy, whole], pass_k=3)
    assert first == [[0.0], [0.0]]
    assert second == ADVANTAGES["pass_at_k"]([whole], pass_k=3)[0] != [[0.0]] * 4


# Credit for turns.


def test_monte_carlo_is_the_return_to_go():
    assert ADVANTAGES["monte_carlo"](FIXTURE_C) == [[[1, 1, 1], [1, 1], [1, 0, 0, 0]]]
    discounted = ADVANTAGES["monte_carlo"](FIXTURE_C, gamma=0.9)[0]
    assert discounted[0] == pytest.approx([0.81, 0.9, 1.0])
    assert discounted[1:] == [[0.9, 1.0], [1.0, 0.0, 0.0, 0.0]]


def test_return_to_go_loo_compares_with_others_at_the_same_turn():
    # Turn 1: all 1. Turn 2: 1, 1, 0: 1 - 0.5, 1 - 0.5, 0 - 1. Turn 3: 1 and 0, each against the other. Turn 4: alone, 0.
    first, second, third = ADVANTAGES["return_to_go_loo"](FIXTURE_C)[0]
    assert (first, second, third) == ([0.0, 0.5, 1.0], [0.0, 0.5], [0.0, -1.0, -1.0, 0.0])


def test_a_turn_that_no_other_trajectory_reached_has_no_baseline():
    (first, second) = ADVANTAGES["return_to_go_loo"]([[played([0, 0, 1]), played([0.5])]])[0]
    assert (first, second) == ([0.5, 1.0, 1.0], [-0.5])
    (first, second) = ADVANTAGES["group_based_per_turn"](
        [[played([0, 1]), played([0.5])]], advantage_normalization=True
    )[0]
    # Turn 1: std of (1, 0.5) = 0.353553. Turn 2: alone, so there is nothing to divide by.
    assert first == pytest.approx([0.5 / 0.353554, 0.0], abs=1e-5)


def test_group_based_per_turn_is_the_same_rule_and_can_be_normalized():
    assert ADVANTAGES["group_based_per_turn"](FIXTURE_C) == ADVANTAGES["return_to_go_loo"](FIXTURE_C)
    first, second, third = ADVANTAGES["group_based_per_turn"](FIXTURE_C, advantage_normalization=True)[0]
    # Turn 2: std of (1, 1, 0) = 0.577350. Turn 3: std of (1, 0) = 0.707107.
    assert first == pytest.approx([0.0, 0.5 / 0.577351, 1 / 0.707108], abs=1e-5)
    assert second == pytest.approx([0.0, 0.5 / 0.577351], abs=1e-5)
    assert third == pytest.approx([0.0, -1 / 0.577351, -1 / 0.707108, 0.0], abs=1e-5)


def test_the_immediate_form_centres_every_reward_and_sums_forward():
    # Centred: turn 1 (-1/3, -1/3, 2/3), turn 2 (-1/3, 2/3, -1/3), turn 3 (1/2, -, -1/2), turn 4 alone.
    # Summed forward: 1/2; 1/2 - 1/3; ...
    first, second, third = ADVANTAGES["group_based_per_turn_immediate"](FIXTURE_C)[0]
    assert first == pytest.approx([-1 / 6, 1 / 6, 1 / 2])
    assert second == pytest.approx([1 / 3, 2 / 3])
    assert third == pytest.approx([-1 / 6, -5 / 6, -1 / 2, 0.0])


# Laws.

rewards_of_a_group = st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)), min_size=2, max_size=6)


def random_groups(seed, *, binary=False):
    rng = random.Random(seed)
    reward = (lambda: float(rng.randrange(2))) if binary else (lambda: round(rng.uniform(-1, 2), 3))

    def member():
        count = rng.randrange(1, 5)
        rewards = [0.0] * (count - 1) + [reward()] if binary else [reward() for _ in range(count)]
        return played(rewards, [rng.randrange(1, 9) for _ in range(count)])

    return [[member() for _ in range(rng.randrange(2, 6))] for _ in range(rng.randrange(1, 4))]


@st.composite
def equal_totals(draw):
    """A group whose members earn 0, 0.1 or 1 in total, all the same, in whatever turns."""
    total = draw(st.sampled_from([0.0, 0.1, 1.0]))
    members = []
    for _ in range(draw(st.integers(2, 5))):
        first = draw(st.lists(st.integers(-4, 4).map(lambda quarters: quarters / 4), max_size=3))
        rewards = [*first, total - sum(first)]
        tokens = draw(st.lists(st.integers(1, 8), min_size=len(rewards), max_size=len(rewards)))
        members.append(Rewarded(total=total, turn_rewards=tuple(rewards), turn_tokens=tuple(tokens)))
    return members


@pytest.mark.parametrize("name", SILENT_WHEN_EQUAL)
@given(group=equal_totals(), seed=st.integers(0, 10_000))
def test_equal_totals_give_exactly_0_to_methods_that_compare_totals_whatever_else_is_in_the_batch(name, group, seed):
    assume(name not in BINARY or group[0].total in (0.0, 1.0))
    found = ADVANTAGES[name]([group, *random_groups(seed, binary=name in BINARY)])[0]
    assert {advantage for turns in found for advantage in turns} == {0.0}


@pytest.mark.parametrize("name", sorted(set(PER_TURN) - set(UNGROUPED)))
@given(member=equal_totals(), size=st.integers(2, 5), seed=st.integers(0, 10_000))
def test_equal_rewards_at_every_turn_give_exactly_0_to_methods_that_compare_turns(name, member, size, seed):
    found = ADVANTAGES[name]([[member[0]] * size, *random_groups(seed)])[0]
    assert {advantage for turns in found for advantage in turns} == {0.0}


def test_equal_totals_in_other_turns_are_no_equal_rewards_to_methods_that_compare_turns():
    group = [played([1.0]), played([0.0, 1.0])]
    # Returns to go: 1 and 1 at the first turn; 1 at the second, which no other trajectory reached.
    for name in ("return_to_go_loo", "group_based_per_turn"):
        assert ADVANTAGES[name]([group]) == [[[0.0], [0.0, 1.0]]]
    # Rewards at the first turn: 1 and 0, whose mean is 0.5.
    assert ADVANTAGES["group_based_per_turn_immediate"]([group]) == [[[0.5], [-0.5, 0.0]]]


def test_whitening_over_the_batch_gives_an_equal_group_something_where_another_group_differs():
    equal, differing = [played([1.0])] * 2, [played([1.0], [3]), played([0.0], [1])]
    assert ADVANTAGES["reinforce_pp_baseline"]([equal]) == [[[0.0], [0.0]]]
    # Distances 0, 0 | 0.5 three times, -0.5 once: mean 1/6. Squares sum to 1 - 6 / 36 = 5/6, over 5 tokens: 1/6.
    found = ADVANTAGES["reinforce_pp_baseline"]([equal, differing])[0]
    assert found[0] == found[1] == pytest.approx([-(1 / 6) / math.sqrt(1 / 6)], abs=1e-6)


def test_without_a_method_rewards_give_no_advantage():
    assert ADVANTAGES["none"]([[played([1.0, 2.0]), played([0.0])]]) == [[[0.0, 0.0], [0.0]]]


def test_every_method_is_listed_as_silent_or_not():
    assert {*SILENT_WHEN_EQUAL, *PER_TURN, *UNGROUPED, "reinforce_pp_baseline"} == set(ADVANTAGES)


@pytest.mark.parametrize("name", ["group_based", "rloo", "gpg"])
@given(rewards=rewards_of_a_group)
def test_advantages_of_a_group_sum_to_zero(name, rewards):
    assert sum(flat(name, [[played([reward]) for reward in rewards]])) == pytest.approx(0.0, abs=1e-6)


@given(seed=st.integers(0, 10_000))
def test_advantages_of_a_turn_sum_to_zero(seed):
    for members in ADVANTAGES["return_to_go_loo"](random_groups(seed)):
        for turn in range(max(map(len, members))):
            present = [row[turn] for row in members if len(row) > turn]
            assert len(present) == 1 or sum(present) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
@given(seed=st.integers(0, 10_000))
def test_whitened_advantages_have_mean_0_and_variance_1_over_tokens(name, seed):
    groups = random_groups(seed)
    weighted = [
        (advantage, tokens)
        for group, members in zip(groups, ADVANTAGES[name](groups), strict=True)
        for member, turns in zip(group, members, strict=True)
        for advantage, tokens in zip(turns, member.turn_tokens, strict=True)
    ]
    total = sum(tokens for _, tokens in weighted)
    assert sum(a * tokens for a, tokens in weighted) == pytest.approx(0.0, abs=1e-6)
    variance = sum(a * a * tokens for a, tokens in weighted) / (total - 1)
    raw = ADVANTAGES["monte_carlo"](groups)
    if name == "reinforce_pp_baseline":
        raw = [group for one in groups for group in ADVANTAGES["group_based"]([one], advantage_normalization=False)]
    values = [
        (value, tokens)
        for group, members in zip(groups, raw, strict=True)
        for member, turns in zip(group, members, strict=True)
        for value, tokens in zip(turns, member.turn_tokens, strict=True)
    ]
    mean = sum(value * tokens for value, tokens in values) / total
    before = sum(tokens * (value - mean) ** 2 for value, tokens in values) / (total - 1)
    # The epsilon under the root shows where advantages hardly differ: v / (v + 1e-8), which is 1 for any other v.
    assert variance == pytest.approx(before / (before + 1e-8), abs=1e-9)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(seed=st.integers(0, 10_000))
def test_the_order_of_groups_and_of_members_does_not_matter(name, seed):
    groups = random_groups(seed, binary=name in BINARY)
    rng = random.Random(seed)
    order = rng.sample(range(len(groups)), len(groups))
    inner = [rng.sample(range(len(group)), len(group)) for group in groups]
    shuffled = [[groups[g][i] for i in inner[g]] for g in order]
    expected, found = ADVANTAGES[name](groups), ADVANTAGES[name](shuffled)
    for place, g in enumerate(order):
        for member, i in enumerate(inner[g]):
            if name == "grpo_passk" and [m.total for m in groups[g]].count(max(m.total for m in groups[g])) > 1:
                continue  # the first of the equally best leads by 0
            assert found[place][member] == pytest.approx(expected[g][i], abs=1e-9)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(seed=st.integers(0, 10_000))
def test_every_turn_gets_a_finite_number(name, seed):
    groups = random_groups(seed, binary=name in BINARY)
    for group, members in zip(groups, ADVANTAGES[name](groups), strict=True):
        for member, turns in zip(group, members, strict=True):
            assert len(turns) == len(member.turn_rewards)
            assert all(map(math.isfinite, turns))
            assert name in PER_TURN or len(set(turns)) == 1
