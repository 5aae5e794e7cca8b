"""Estimators, losses and corrections against verl 0.9.1 on random batches. Optional: `pip install verl==0.9.1 --no-deps`
and what it asks for, then `pytest -m verl`."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from sparring.algorithms.advantages import ADVANTAGES, Rewarded
from sparring.algorithms.corrections import CORRECTIONS
from sparring.algorithms.losses import LOSSES, Tokens
from sparring.algorithms.reductions import REDUCTIONS, Counts

core = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]

BATCHES = range(100)


def batch(seed: int) -> SimpleNamespace:
    """Groups of 2 to 5 rows of 1 to 6 tokens, right-padded; a reward on the last token of each."""
    rng = random.Random(seed)
    sizes = [rng.randrange(2, 6) for _ in range(rng.randrange(1, 4))]
    rewards = [[rng.choice([0.0, 1.0, round(rng.random(), 3)]) for _ in range(size)] for size in sizes]
    lengths = [[rng.randrange(1, 7) for _ in range(size)] for size in sizes]
    index = [group for group, size in enumerate(sizes) for _ in range(size)]
    flat_lengths = [length for row in lengths for length in row]
    mask = torch.tensor([[float(place < length) for place in range(6)] for length in flat_lengths])
    token_rewards = torch.zeros_like(mask)
    flat_rewards = [reward for row in rewards for reward in row]
    for place, (length, reward) in enumerate(zip(flat_lengths, flat_rewards, strict=True)):
        token_rewards[place, length - 1] = reward
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(mask.shape, generator=generator) * 2 - 0.05
    new = old + torch.randn(mask.shape, generator=generator) * 0.4
    advantages = torch.randn(mask.shape[0], generator=generator)[:, None].expand(mask.shape).contiguous()
    groups = [
        [Rewarded(total=r, turn_rewards=(r,), turn_tokens=(n,)) for r, n in zip(*rows, strict=True)]
        for rows in zip(rewards, lengths, strict=True)
    ]
    return SimpleNamespace(
        groups=groups,
        index=index,
        mask=mask,
        rewards=token_rewards,
        old=old,
        new=new.clamp(max=-1e-3),
        advantages=advantages,
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "hyperparameters"),
    [
        ("group_based", "grpo", {}),
        ("rloo", "rloo", {}),
        ("opo", "opo", {}),
        ("gpg", "gpg", {}),
        ("grpo_passk", "grpo_passk", {}),
        ("reinforce_pp", "reinforce_plus_plus", {}),
        ("reinforce_pp_baseline", "reinforce_plus_plus_baseline", {}),
    ],
)
@pytest.mark.parametrize("seed", BATCHES)
def test_advantages(ours: str, theirs: str, hyperparameters: dict, seed: int) -> None:
    import numpy as np
    from verl.trainer.config import AlgoConfig

    one = batch(seed)
    totals = [member.total for group in one.groups for member in group]
    if len(set(totals)) == 1 and ours.startswith("reinforce"):
        # verl divides rounding by rounding there; ours must say exactly nothing.
        assert not any(
            a for members in ADVANTAGES[ours](one.groups, **hyperparameters) for turns in members for a in turns
        )
        return
    arguments = {"token_level_rewards": one.rewards.clone(), "response_mask": one.mask}
    if theirs != "reinforce_plus_plus":
        arguments["index"] = np.array(one.index)
    if theirs in ("grpo_passk", "reinforce_plus_plus"):
        arguments["config"] = AlgoConfig(gamma=1.0)
    expected, _ = core.get_adv_estimator_fn(theirs)(**arguments)
    found = [turns[0] for members in ADVANTAGES[ours](one.groups, **hyperparameters) for turns in members]
    firsts = (expected * one.mask)[:, 0].tolist()
    for group in range(len(one.groups)):
        rows = [place for place, member in enumerate(one.index) if member == group]
        if len({totals[place] for place in rows}) == 1 and ours == "grpo_passk":
            continue
        assert [found[place] for place in rows] == pytest.approx([firsts[place] for place in rows], abs=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs", "hyperparameters", "settings"),
    [
        ("ppo", "vanilla", {"dual_clip": 3.0}, {}),
        ("gspo", "gspo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}, {}),
        ("gpg", "gpg", {}, {}),
        ("cispo", "cispo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}, {}),
        ("dppo_tv", "dppo_tv", {"ratio_cap": 3.0}, {}),
    ],
)
@pytest.mark.parametrize("seed", BATCHES)
def test_losses(ours: str, theirs: str, hyperparameters: dict, settings: dict, seed: int) -> None:
    from verl.workers.config import FSDPActorConfig

    one = batch(seed)
    mode = "seq-mean-token-mean" if ours == "gspo" else "token-mean"
    config = FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        clip_ratio_c=3.0,
    )
    theirs_new = one.new.clone().requires_grad_()
    expected, *_ = core.get_policy_loss_fn(theirs)(
        old_log_prob=one.old,
        log_prob=theirs_new,
        advantages=one.advantages,
        response_mask=one.mask,
        loss_agg_mode=mode,
        config=config,
    )
    expected.backward()
    chosen = one.mask.bool()
    new = one.new[chosen].requires_grad_()
    rows = torch.arange(len(one.mask))[:, None].expand(one.mask.shape)[chosen]
    tokens = Tokens(logprobs_M=new, old_M=one.old[chosen], advantages_M=one.advantages[chosen], trajectory_M=rows)
    loss_M, _ = LOSSES[ours](tokens, **hyperparameters)
    if ours == "gspo":
        weights_M = 1 / (len(one.mask) * one.mask.sum(dim=1))[rows]
    else:
        weights_M = torch.full_like(loss_M, 1 / chosen.sum())
    loss = (loss_M * weights_M).sum()
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    assert new.grad is not None
    assert torch.allclose(new.grad, theirs_new.grad[chosen], atol=1e-5)


@pytest.mark.parametrize("seed", BATCHES)
def test_corrections(seed: int) -> None:
    from verl.trainer.ppo import rollout_corr_helper as helper

    one = batch(seed)
    chosen = one.mask.bool()
    rows = torch.arange(len(one.mask))[:, None].expand(one.mask.shape)[chosen]
    log_ratio = one.new - one.old
    for ours, level in (("token_tis", "token"), ("sequence_tis", "sequence")):
        expected, _ = helper.compute_rollout_correction_weights(
            log_ratio=log_ratio, response_mask=one.mask, rollout_is=level, rollout_is_threshold=2.0
        )
        found = CORRECTIONS[ours](log_ratio[chosen], rows, correction_high=2.0)
        assert torch.allclose(found, expected[chosen], atol=1e-5)
    found = CORRECTIONS["icepop"](log_ratio[chosen], rows, correction_low=0.7, correction_high=1.5)
    if not found.any():
        return  # verl divides by zero in its metrics where no weight is left
    expected, _ = helper.compute_rollout_correction_weights(
        log_ratio=log_ratio, response_mask=one.mask, rollout_is="token", rollout_is_threshold="0.7_1.5"
    )
    assert torch.allclose(found, expected[chosen], atol=1e-5)


@pytest.mark.parametrize("seed", BATCHES)
def test_masks(seed: int) -> None:
    from verl.trainer.ppo import rollout_corr_helper as helper

    one = batch(seed)
    chosen = one.mask.bool()
    rows = torch.arange(len(one.mask))[:, None].expand(one.mask.shape)[chosen]
    log_ratio = one.new - one.old
    # verl bounds sampler / policy, the inverse of w.
    for ours, theirs, low, high in (
        ("sequence_mask", "seq_sum_k1", 0.5, 2.0),
        ("geometric_mask", "seq_mean_k1", 0.8, 1.25),
    ):
        mask, _ = helper.compute_rollout_rejection_mask(
            log_ratio=log_ratio, response_mask=one.mask, rollout_rs=theirs, rollout_rs_threshold=f"{1 / high}_{1 / low}"
        )
        found = CORRECTIONS[ours](log_ratio[chosen], rows, correction_low=low, correction_high=high)
        assert torch.allclose(found, (log_ratio.exp() * mask)[chosen], atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs", "hyperparameters"),
    [
        ("token_mean", "token-mean", {}),
        ("sequence_mean_token_sum", "seq-mean-token-sum", {}),
        ("sequence_mean_token_mean", "seq-mean-token-mean", {}),
        # verl divides by the length of the padded rows, which is 6 here, and ours by the number that is given.
        ("sequence_sum_norm", "seq-mean-token-sum-norm", {"loss_norm": 6.0}),
    ],
)
@pytest.mark.parametrize("seed", BATCHES)
def test_reductions(ours: str, theirs: str, hyperparameters: dict, seed: int) -> None:
    one = batch(seed)
    lengths = one.mask.sum(dim=1).int().tolist()
    losses = one.advantages * one.new
    expected = core.agg_loss(losses, one.mask, theirs)
    total = 0.0
    for row, length in enumerate(lengths):
        counts = Counts(
            tokens=sum(lengths),
            sequences=len(lengths),
            trajectories=len(lengths),
            prompts=len(one.groups),
            own_sequence=length,
            own_trajectory=length,
            own_prompt=0,
        )
        total += REDUCTIONS[ours](counts, **hyperparameters) * losses[row, :length].sum().item()
    assert total == pytest.approx(expected.item(), abs=1e-5)
