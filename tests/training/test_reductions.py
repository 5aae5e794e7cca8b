"""What each reduction makes of long, of forked, and of several trajectories."""

import pytest

from sparring.algorithms.reductions import REDUCTIONS
from sparring.training.sequences import build_batch


@pytest.fixture
def groups(turn, group):
    """Prompt a: a long line of 6 tokens and one of 2. Prompt b: a fork, 2 tokens that 2 branches of 1 and 3 share."""
    long = [turn(0, None, [1], [10, 11, 12, 13, 14, 15])]
    short = [turn(0, None, [1], [16, 17])]
    fork = [
        turn(0, None, [2], [20, 21]),
        turn(1, 0, [2, 20, 21, 3], [22]),
        turn(2, 0, [2, 20, 21, 4], [23, 24, 25]),
    ]
    return [group("a", long, short), group("b", fork)]


def weight_of(groups, name, **settings):
    """The weight of each sampled id."""
    advantages = {t.id: (1.0,) * len(t.turns) for g in groups for t in g.trajectories}
    batch = build_batch(groups, advantages, reduction=lambda counts: REDUCTIONS[name](counts, **settings))
    return {
        token: weight
        for segment in batch.segments
        for token, weight, masked in zip(segment.token_ids, segment.weights, segment.mask, strict=True)
        if masked
    }


@pytest.mark.parametrize(
    ("name", "long", "short", "fork"),
    [
        # 14 tokens, 4 sequences, 3 trajectories (6, 2 and 6 tokens), 2 prompts (8 and 6 tokens).
        ("trajectory_mean", 1 / 18, 1 / 6, 1 / 18),
        ("token_mean", 1 / 14, 1 / 14, 1 / 14),
        ("prompt_mean", 1 / 16, 1 / 16, 1 / 12),
        ("sequence_mean_token_sum", 1 / 4, 1 / 4, 1 / 4),
        ("sequence_sum_norm", 1 / 4096, 1 / 4096, 1 / 4096),
        ("sum", 1, 1, 1),
    ],
)
def test_weights(groups, name, long, short, fork):
    weights = weight_of(groups, name)
    assert [weights[token] for token in range(10, 16)] == pytest.approx([long] * 6)
    assert [weights[token] for token in (16, 17)] == pytest.approx([short] * 2)
    assert [weights[token] for token in range(20, 26)] == pytest.approx([fork] * 6)


def test_the_mean_of_sequences_counts_a_shared_token_once(groups):
    weights = weight_of(groups, "sequence_mean_token_mean")
    assert weights[10] == pytest.approx(1 / 24)
    # Each of the fork's two sequences weighs a quarter in all.
    assert sum(weights[token] for token in range(20, 26)) == pytest.approx(2 / 4)
    assert sum(weights.values()) == pytest.approx(1.0)


def test_the_constant_norm_is_the_users(groups):
    assert weight_of(groups, "sequence_sum_norm", loss_norm=10.0)[10] == pytest.approx(1 / 40)


@pytest.mark.parametrize("name", ["trajectory_mean", "token_mean", "prompt_mean", "sequence_mean_token_mean"])
def test_means_sum_to_one(groups, name):
    assert sum(weight_of(groups, name).values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_a_trajectory_without_signal_counts_though_it_is_left_out(groups, name):
    advantages = {t.id: (1.0,) * len(t.turns) for g in groups for t in g.trajectories}
    whole = build_batch(groups, advantages, reduction=REDUCTIONS[name])
    less = build_batch(groups, advantages | {"a-1": (0.0,)}, reduction=REDUCTIONS[name])
    assert less.num_trained_tokens == whole.num_trained_tokens - 2

    def pick(batch):
        return [w for s in batch.segments if 10 in s.token_ids for w, m in zip(s.weights, s.mask, strict=True) if m]

    assert pick(less)[:6] == pick(whole)[:6]
