"""The learner against transformers' own forward and autograd, on a tiny random Llama in fp32."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparring.algorithms.advantages import ADVANTAGES
from sparring.algorithms.credit import credit
from sparring.algorithms.reductions import REDUCTIONS
from sparring.errors import ConfigError, DataError
from sparring.loop import optimize
from sparring.training import learner as training_learner
from sparring.training import sequences
from sparring.training.divergence import subtract_penalty
from sparring.training.learner import AdamWSettings, TorchLearner
from sparring.training.sequences import build_demonstration_batch, expand_batch
from sparring.types import Reward


def build_batch(groups, advantages, *, reduction="trajectory_mean", **options):
    """`sequences.build_batch` with one advantage a trajectory."""
    spread = {t.id: (advantages[t.id],) * len(t.turns) for g in groups for t in g.trajectories}
    return sequences.build_batch(groups, spread, reduction=REDUCTIONS[reduction], **options)


EVERY_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}


@pytest.fixture
def batch(turn, group):
    """Two groups that share a system prompt; one trajectory forks, one has two roots, temperatures differ."""
    system = [1, 2, 3, 4]
    fork = [
        turn(0, None, [*system, 5, 6], [7, 8, 9], sampled=-4.0),
        turn(1, 0, [*system, 5, 6, 7, 8, 9, 10, 11], [12, 13], temperature=0.7, sampled=-4.0),
        turn(2, 0, [*system, 5, 6, 7, 8, 9, 10, 14], [15], sampled=-4.0),
    ]
    line = [
        turn(0, None, [*system, 5, 6], [20, 21], sampled=-3.5),
        turn(1, 0, [*system, 5, 6, 20, 21, 22], [23, 24], sampled=-3.5),
    ]
    roots = [
        turn(0, None, [*system, 30], [31, 32], sampled=-4.0),
        turn(1, None, [*system, 33], [34], sampled=-4.0),
    ]
    groups = [group("a", fork, line), group("b", roots, [turn(0, None, [*system, 30], [40, 41])])]
    return build_batch(groups, {"a-0": 1.5, "a-1": -0.5, "b-0": -1.0, "b-1": 1.0})


def gradients(policy):
    return torch.cat([p.grad.flatten() for p in policy.trained.values()])


def distance(one, other):
    return ((one - other).norm() / other.norm()).item()


def transformers_logprobs(policy, batch):
    """Log-probabilities of the masked tokens of an expand_batch batch, one plain forward of the whole model each."""
    found = []
    for sequence in batch.sequences:
        segments = [batch.segments[index] for index in sequence.segments]
        ids = torch.tensor([[token for s in segments for token in s.token_ids]])
        mask = torch.tensor([m for s in segments for m in s.mask])
        temperatures = torch.tensor([s.temperature for s in segments for _ in s.mask])
        logits = policy.module(input_ids=ids).logits[0, :-1] / temperatures[1:, None]
        found.append(logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0][mask[1:]])
    return torch.cat(found)


def field(batch, name):
    return torch.tensor([v for s in batch.segments for v, m in zip(getattr(s, name), s.mask, strict=True) if m])


def reference_gradients(policy, batch):
    """PPO written out again, over transformers' forward and without any sharing."""
    whole = expand_batch(batch)
    logprobs, advantages = transformers_logprobs(policy, whole), field(whole, "advantages")
    ratio = (logprobs - field(whole, "sampled_logprobs")).exp()
    loss = -(torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) * field(whole, "weights")).sum()
    for parameter in policy.trained.values():
        parameter.grad = None
    loss.backward()
    result = gradients(policy)
    for parameter in policy.trained.values():
        parameter.grad = None
    return loss.item(), result


@pytest.mark.parametrize(
    "targets",
    [EVERY_LINEAR, ("q_proj", "v_proj"), ("k_proj",), ("v_proj", "up_proj"), ("gate_proj", "o_proj"), ()],
    ids=lambda targets: "-".join(targets) or "full",
)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_loss_and_gradients_equal_those_of_transformers_on_expanded_sequences(tiny_policy, batch, targets, tied):
    policy = tiny_policy(targets, tied=tied)
    expected_loss, expected = reference_gradients(policy, batch)
    metrics = TorchLearner(policy).forward_backward(batch, "ppo", CLIP)
    assert metrics["training/loss"] == pytest.approx(expected_loss, rel=1e-4)
    assert distance(gradients(policy), expected) <= 1e-4
    assert 0 < metrics["training/clip_fraction"] < 1  # else the comparison would prove little


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")  # peft warns; ours is exact
@pytest.mark.parametrize("tied", [True, False])
def test_an_adapter_on_the_output_matrix_is_played_and_trained(tiny_policy, batch, tied):
    policy = tiny_policy(("lm_head", "q_proj"), tied=tied)
    learner = TorchLearner(policy)
    whole = expand_batch(batch)
    assert learner.logprobs(whole) == pytest.approx(transformers_logprobs(policy, whole).tolist(), abs=1e-5)
    _, expected = reference_gradients(policy, batch)
    learner.forward_backward(batch, "ppo", CLIP)
    assert distance(gradients(policy), expected) <= 1e-4


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_an_adapter_on_what_is_not_linear_is_refused(tiny_policy):
    with pytest.raises(ConfigError, match=r"model\.lora_targets: adapts .*embed_tokens"):
        tiny_policy(("embed_tokens",))


def test_logprobs_equal_those_of_transformers(tiny_policy, batch):
    policy = tiny_policy()
    whole = expand_batch(batch)
    assert TorchLearner(policy).logprobs(whole) == pytest.approx(
        transformers_logprobs(policy, whole).tolist(), abs=1e-5
    )


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "generic"])
@pytest.mark.parametrize("targets", [EVERY_LINEAR, ()], ids=["lora", "full"])
@pytest.mark.parametrize("budget", [1, 20, 25, 10_000])
def test_microbatches_and_forwards_change_neither_loss_nor_gradient(tiny_policy, batch, targets, budget, lean):
    policy = tiny_policy(targets)
    expected_loss, expected = reference_gradients(policy, batch)
    policy.is_lean = lean
    metrics = TorchLearner(policy, max_tokens_per_microbatch=budget).forward_backward(batch, "ppo", CLIP)
    assert metrics["training/loss"] == pytest.approx(expected_loss, rel=1e-4)
    assert metrics["training/trained_tokens"] == batch.num_trained_tokens
    assert distance(gradients(policy), expected) <= 1e-4


tokens = st.lists(st.integers(0, 49), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), system=tokens)
def test_shared_and_expanded_forms_have_the_same_gradient(tiny_policy, turn, group, data, system):
    members = []
    for _ in range(data.draw(st.integers(1, 4))):
        turns = []
        for id in range(data.draw(st.integers(1, 4))):
            parent = data.draw(st.sampled_from([None, *range(id)]))
            before = tuple(system) if parent is None else turns[parent].prompt_ids + turns[parent].token_ids
            turns.append(turn(id, parent, (*before, *data.draw(tokens)), data.draw(tokens), sampled=-4.0))
        members.append(turns)
    advantages = {f"t-{i}": (-1.0) ** i * (i + 1) for i in range(len(members))}
    batch = build_batch([group("t", *members)], advantages)
    policy = tiny_policy(("q_proj", "v_proj", "down_proj"))
    results = []
    for form in (batch, expand_batch(batch)):
        metrics = TorchLearner(policy).forward_backward(form, "importance_sampling", {})
        results.append((metrics["training/loss"], gradients(policy)))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4, abs=1e-6)
    assert distance(results[0][1], results[1][1]) <= 1e-4


@pytest.mark.parametrize("reduction", ["token_mean", "trajectory_mean", "sum"])
def test_leaving_out_trajectories_without_advantage_changes_no_gradient(tiny_policy, turn, group, reduction):
    members = [[turn(0, None, [1, 2], answer)] for answer in ([3, 4], [5], [6, 7, 8])]
    groups, advantages = [group("t", *members)], {"t-0": 1.0, "t-1": 0.0, "t-2": -1.0}
    policy, found = tiny_policy(), []
    for drop in (True, False):
        made = build_batch(groups, advantages, reduction=reduction, drop_zero_advantage=drop)
        metrics = TorchLearner(policy).forward_backward(made, "importance_sampling", {})
        found.append((metrics["training/trained_tokens"], metrics["training/loss"], gradients(policy)))
    assert (found[0][0], found[1][0]) == (5, 6)
    assert found[0][1] == pytest.approx(found[1][1])
    assert distance(found[0][2], found[1][2]) <= 1e-5


def test_two_calls_before_a_step_add_their_gradients(tiny_policy, batch):
    policy = tiny_policy()
    learner = TorchLearner(policy)
    learner.forward_backward(batch, "ppo", CLIP)
    once = gradients(policy)
    learner.forward_backward(batch, "ppo", CLIP)
    assert distance(gradients(policy), 2 * once) <= 1e-6


def test_a_step_is_clipped_reported_and_clears_the_gradient(tiny_policy, batch):
    policy = tiny_policy()
    learner = TorchLearner(policy, adam=AdamWSettings(grad_clip_norm=0.01))
    learner.forward_backward(batch, "ppo", CLIP)
    norm = gradients(policy).norm().item()
    before = {name: p.detach().clone() for name, p in policy.trained.items()}
    metrics = learner.optim_step(0.1)
    changed = math.sqrt(sum((p - before[name]).square().sum().item() for name, p in policy.trained.items()))
    size = math.sqrt(sum(p.square().sum().item() for p in policy.trained.values()))
    assert metrics == {
        "training/grad_norm": pytest.approx(norm),
        "training/learning_rate": 0.1,
        "training/update_size": pytest.approx(changed / size, rel=1e-3),
    }
    assert all(p.grad is None for p in policy.trained.values())
    # AdamW's first step moves every weight by rate * g / (|g| + eps), with the clipped g.
    moved = max((p - before[name]).abs().max().item() for name, p in policy.trained.items())
    assert 0.09 < moved <= 0.1001


@pytest.mark.parametrize("targets", [EVERY_LINEAR, ()], ids=["lora", "full"])
def test_supervised_steps_learn_a_demonstration(tiny_policy, targets):
    learner = TorchLearner(tiny_policy(targets))
    lesson = build_demonstration_batch([([1, 2, 3, 4, 5], [False, False, True, True, True])])
    losses = []
    for _ in range(40):
        losses.append(learner.forward_backward(lesson, "cross_entropy", {})["training/loss"])
        learner.optim_step(0.05)
    # The adapter cannot go below about 0.8 here: the frozen output matrix bounds how far apart its logits can be.
    assert losses[-1] < 0.9 < 3 < losses[0]
    assert min(learner.logprobs(lesson)) > math.log(0.3)


def test_on_policy_metrics_say_so(tiny_policy, turn, group):
    policy = tiny_policy()
    learner = TorchLearner(policy)
    first = build_batch([group("t", [turn(0, None, [1, 2], [3, 4])])], {"t-0": 1.0})
    exact = replace(turn(0, None, [1, 2], [3, 4]), sampled_logprobs=tuple(learner.logprobs(first)))
    metrics = learner.forward_backward(build_batch([group("t", [exact])], {"t-0": 1.0}), "ppo", CLIP)
    expected = {
        "loss": -1.0,  # -rho * A with rho = 1, averaged over the tokens of the one trajectory
        "ratio_mean": 1.0,
        "ratio_min": 1.0,
        "ratio_max": 1.0,
        "clip_fraction": 0.0,
        "effective_sample_size": 1.0,
        "logprob_difference_mean": 0.0,
        "logprob_difference_max": 0.0,
        "kl_k1": 0.0,
        "kl_k3": 0.0,
        "tokens": 3.0,  # the last token predicts nothing, so it is not read
        "trained_tokens": 2.0,
    }
    assert {k: metrics[f"training/{k}"] for k in expected} == pytest.approx(expected, abs=1e-5)
    assert 0 < metrics["training/entropy"] < math.log(50)


def test_a_loss_that_is_not_finite_is_refused_and_leaves_no_gradient(tiny_policy, turn, group):
    policy = tiny_policy()
    bad = build_batch([group("t", [turn(0, None, [1, 2], [3], sampled=-1e9)])], {"t-0": 1.0})
    with pytest.raises(DataError, match="the loss of a microbatch of 1 tokens is -inf"):
        TorchLearner(policy).forward_backward(bad, "importance_sampling", {})
    assert all(p.grad is None for p in policy.trained.values())


def test_a_gradient_that_is_not_finite_is_refused_and_leaves_the_weights(tiny_policy, batch):
    policy = tiny_policy()
    learner = TorchLearner(policy)
    before = learner.export_weights().fingerprint
    learner.forward_backward(batch, "ppo", CLIP)
    next(iter(policy.trained.values())).grad[0, 0] = math.nan
    with pytest.raises(DataError, match="the gradient norm is nan"):
        learner.optim_step(0.1)
    assert policy.snapshot().fingerprint == before
    assert learner.optim_step(0.1)["training/grad_norm"] == 0.0


def test_exported_weights_are_one_object_until_a_step_and_untouched_by_it(tiny_policy, batch):
    policy = tiny_policy()
    learner = TorchLearner(policy)
    exported = learner.export_weights()
    assert learner.export_weights() is exported
    copies = {name: tensor.clone() for name, tensor in exported.tensors.items()}
    learner.forward_backward(batch, "ppo", CLIP)
    learner.optim_step(0.1)
    assert all(torch.equal(exported.tensors[name], copy) for name, copy in copies.items())
    assert learner.export_weights().fingerprint != exported.fingerprint


@pytest.mark.parametrize("targets", [EVERY_LINEAR, ()], ids=["lora", "full"])
def test_a_restored_learner_continues_bit_for_bit(tiny_policy, batch, tmp_path, targets):
    def step(learner):
        learner.forward_backward(batch, "ppo", CLIP)
        learner.optim_step(0.01)

    learner = TorchLearner(tiny_policy(targets))
    step(learner)
    step(learner)
    learner.export_state().write(tmp_path)
    step(learner)
    restored = TorchLearner(tiny_policy(targets))
    restored.load_state(tmp_path)
    step(restored)
    assert restored.export_weights().fingerprint == learner.export_weights().fingerprint
    fresh = TorchLearner(tiny_policy(targets))
    fresh.load_state(tmp_path)
    fresh.reset_optimizer()
    step(fresh)
    assert fresh.export_weights().fingerprint != learner.export_weights().fingerprint


def test_state_of_another_adapter_is_refused_by_name_and_changes_nothing(tiny_policy, tmp_path):
    TorchLearner(tiny_policy(("q_proj",))).export_state().write(tmp_path)
    policy = tiny_policy(("q_proj", "v_proj"))
    learner = TorchLearner(policy)
    before = policy.snapshot().fingerprint
    with pytest.raises(DataError, match=r"missing .*v_proj\.lora_A"):
        learner.load_state(tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(b"\x80\x04not safetensors")
    with pytest.raises(DataError, match=r"optimizer\.safetensors cannot be read as safetensors"):
        learner.load_state(tmp_path)
    (tmp_path / "optimizer.safetensors").unlink()
    with pytest.raises(DataError, match=r"optimizer\.safetensors cannot be read"):
        learner.load_state(tmp_path)
    assert policy.snapshot().fingerprint == before


# What surrounds the loss.


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "generic"])
@pytest.mark.parametrize("targets", [EVERY_LINEAR, ("lm_head", "q_proj")], ids=["frozen head", "trained head"])
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_the_entropy_bonus_has_the_gradient_of_the_entropy(tiny_policy, batch, targets, lean):
    policy = tiny_policy(targets)
    whole = expand_batch(batch)
    # With advantages of 0 only the bonus has a gradient; written out over transformers' forward.
    silent = replace(whole, segments=tuple(replace(s, advantages=(0.0,) * len(s.advantages)) for s in whole.segments))
    total = torch.zeros(())
    for sequence in silent.sequences:
        segments = [silent.segments[index] for index in sequence.segments]
        ids = torch.tensor([[token for s in segments for token in s.token_ids]])
        mask = torch.tensor([m for s in segments for m in s.mask])
        weights = torch.tensor([w for s in segments for w in s.weights])
        temperatures = torch.tensor([s.temperature for s in segments for _ in s.mask])
        logprobs = (policy.module(input_ids=ids).logits[0, :-1] / temperatures[1:, None]).log_softmax(-1)
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        total = total - 0.5 * (entropies * weights[1:])[mask[1:]].sum()
    total.backward()
    expected = gradients(policy)
    for parameter in policy.trained.values():
        parameter.grad = None
    policy.is_lean = lean
    metrics = TorchLearner(policy).forward_backward(silent, "ppo", CLIP | {"entropy_coef": 0.5})
    assert metrics["training/loss"] == pytest.approx(total.item(), rel=1e-4)
    assert distance(gradients(policy), expected) <= 1e-4


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "generic"])
def test_the_reference_is_the_model_with_its_adapter_switched_off(tiny_policy, batch, lean):
    policy = tiny_policy()
    whole = expand_batch(batch)
    with policy.module.disable_adapter(), torch.no_grad():
        reference = transformers_logprobs(policy, whole)
    with torch.no_grad():
        difference = transformers_logprobs(policy, whole) - reference
    policy.is_lean = lean
    learner = TorchLearner(policy)
    metrics = learner.forward_backward(batch, "ppo", CLIP | {"kl_coef": 0.1})
    assert metrics["training/reference_kl_k1"] == pytest.approx(difference.mean().item(), abs=1e-5)
    assert metrics["training/reference_kl_k2"] == pytest.approx(difference.square().mean().item() / 2, abs=1e-5)
    assert difference.abs().max() > 0.05  # else the comparison would prove little


@pytest.mark.parametrize("budget", [1, 25, 10_000])
@pytest.mark.parametrize(
    "config",
    [{"off_policy_correction": "sequence_mask", "correction_high": 1e6}, {"off_policy_correction": "sequence_tis"}],
)
def test_losses_over_whole_trajectories_do_not_depend_on_microbatches(tiny_policy, batch, budget, config):
    found = []
    for tokens in (budget, 1_000_000):
        policy = tiny_policy()
        learner = TorchLearner(policy, max_tokens_per_microbatch=tokens)
        metrics = learner.forward_backward(
            batch, "gspo", config | {"clip_low_threshold": 0.0, "clip_high_threshold": 1e9}
        )
        found.append((metrics["training/loss"], gradients(policy)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    assert distance(found[0][1], found[1][1]) <= 1e-4


@pytest.mark.parametrize("budget", [1, 25, 10_000])
def test_three_policies_take_the_log_probabilities_before_the_step(tiny_policy, batch, budget):
    policy = tiny_policy()
    learner = TorchLearner(policy, max_tokens_per_microbatch=budget)
    config = CLIP | {"policy_ratio": "three_policy", "off_policy_correction": "token_tis"}
    before = learner.logprobs(batch)
    first = learner.forward_backward(batch, "ppo", config, before)
    assert first["training/clip_fraction"] == 0  # the ratio is 1
    learner.optim_step(0.3)
    second = learner.forward_backward(batch, "ppo", config, before)
    assert second["training/clip_fraction"] > 0


@pytest.mark.parametrize("budget", [1, 12, 10_000])
def test_log_probabilities_are_in_segment_order_however_the_batch_is_divided(tiny_policy, turn, group, budget):
    fork = [
        turn(0, None, [5, 6], [7, 8, 9]),
        turn(1, 0, [5, 6, 7, 8, 9, 10], [12]),
        turn(2, 0, [5, 6, 7, 8, 9, 11], [15, 3]),
    ]
    other = [turn(0, None, [5, 6], [20, 21])]
    batch = build_batch([group("a", fork, other)], {"a-0": 1.0, "a-1": 1.0})
    order = [ids for one in batch.segments for ids, masked in zip(one.token_ids, one.mask, strict=True) if masked]
    policy = tiny_policy()
    expected = {}
    for one in (*fork, *other):
        logprobs = policy.module(input_ids=torch.tensor([[*one.prompt_ids, *one.token_ids]])).logits[0].log_softmax(-1)
        begin = len(one.prompt_ids)
        expected |= {token: logprobs[begin + i - 1, token].item() for i, token in enumerate(one.token_ids)}
    learner = TorchLearner(policy, max_tokens_per_microbatch=budget)
    assert learner.logprobs(batch) == pytest.approx([expected[token] for token in order], abs=1e-5)
    base = TorchLearner(policy).reference_logprobs(batch)
    assert learner.reference_logprobs(batch) == pytest.approx(base, abs=1e-5)
    assert base != pytest.approx(learner.logprobs(batch), abs=1e-3)


def test_b_matrices_learn_faster_by_the_ratio_of_lora_plus(tiny_policy, batch):
    policy = tiny_policy()
    before = {name: one.detach().clone() for name, one in policy.trained.items()}
    learner = TorchLearner(policy, adam=AdamWSettings(lora_plus_lr_ratio=8.0, grad_clip_norm=0))
    learner.forward_backward(batch, "ppo", CLIP)
    learner.optim_step(0.01)
    # AdamW's first step moves every weight that has a gradient by the rate.
    for name, one in policy.trained.items():
        moved = (one.detach() - before[name]).abs().max().item()
        assert moved == pytest.approx(0.08 if ".lora_B." in name else 0.01, rel=1e-3)


def test_the_divergence_can_be_a_part_of_the_reward(tiny_policy, turn, group):
    policy = tiny_policy()
    fork = [
        turn(0, None, [5, 6], [7, 8, 9]),
        turn(1, 0, [5, 6, 7, 8, 9, 10], [12]),
        turn(2, 0, [5, 6, 7, 8, 9, 11], [15, 3]),
    ]
    played = group("a", fork, [turn(0, None, [5, 6], [20, 21])])
    (changed,), metrics = subtract_penalty([played], TorchLearner(policy, max_tokens_per_microbatch=6), coef=0.5)
    every = []
    with policy.module.disable_adapter(), torch.no_grad():
        for trajectory, penal in zip(played.trajectories, changed.trajectories, strict=True):
            total = 0.0
            for one in trajectory.turns:
                ids = torch.tensor([[*one.prompt_ids, *one.token_ids]])
                logprobs = policy.module(input_ids=ids).logits[0].log_softmax(-1)
                places = range(len(one.prompt_ids) - 1, ids.shape[1] - 1)
                total += sum(-1.0 - logprobs[place, ids[0, place + 1]].item() for place in places)
            every.append(total)
            assert penal.reward.total == pytest.approx(-0.5 * total, abs=1e-4)
    # Rewards per turn stay so: each turn pays for its own tokens.
    fork_rewarded = replace(played.trajectories[0], reward=Reward(total=1.0, per_turn={0: 0.0, 1: 0.25, 2: 0.75}))
    per_turn = replace(played, trajectories=(fork_rewarded, played.trajectories[1]))
    (changed,), _ = subtract_penalty([per_turn], TorchLearner(policy), coef=0.5)
    first = changed.trajectories[0]
    paid = {turn_id: first.reward.per_turn[turn_id] - fork_rewarded.reward.per_turn[turn_id] for turn_id in (0, 1, 2)}
    assert sum(paid.values()) == pytest.approx(-0.5 * every[0], abs=1e-4)
    assert all(paid.values())
    assert first.reward.total == pytest.approx(sum(first.reward.per_turn.values()))
    # 3 + 1 + 2 tokens of the fork and 2 of the other.
    assert metrics["training/reference_kl_k1"] == pytest.approx(sum(every) / 8, abs=1e-4)


@pytest.mark.parametrize("reduction", ["trajectory_mean", "token_mean", "prompt_mean", "sum"])
@pytest.mark.parametrize("method", sorted(ADVANTAGES.keys() - {"none"}))  # which gives no gradient by itself
def test_a_trajectory_that_forked_trains_as_the_same_one_that_did_not(tiny_policy, turn, group, method, reduction):
    """The same turns with the same prompts, of which one time each continues the last and one time some begin anew."""

    def played(first, forks=()):
        prompt, turns = [1, 2, 3], []
        for number, answer in enumerate(([first, 8], [12], [15, 16, 17], [9])):
            parent = None if number == 0 or number in forks else number - 1
            turns.append(turn(number, parent, prompt, answer, sampled=-3.5))
            prompt = [*prompt, *answer, 20 + number]
        return turns

    found = []
    for forks in ((), (2,), (1, 2, 3)):
        one = group("a", played(7, forks), played(30), played(31))
        rewarded = replace(
            one,
            trajectories=tuple(
                replace(trajectory, reward=Reward(total=total))
                for trajectory, total in zip(one.trajectories, (1.0, 0.0, 0.0), strict=True)
            ),
        )
        advantages = credit([rewarded], ADVANTAGES[method], sums_turn_rewards=None)
        batch = sequences.build_batch([rewarded], advantages, reduction=REDUCTIONS[reduction])
        policy = tiny_policy()
        metrics = TorchLearner(policy).forward_backward(batch, "ppo", CLIP | {"off_policy_correction": "sequence_mask"})
        found.append((len(batch.sequences), advantages, metrics["training/loss"], gradients(policy)))
    assert [count - found[0][0] for count, *_ in found] == [0, 1, 3]
    for _, advantages, loss, gradient in found[1:]:
        assert advantages == found[0][1]
        assert loss == pytest.approx(found[0][2], rel=1e-4)
        assert distance(gradient, found[0][3]) <= 1e-4


@pytest.mark.parametrize(
    ("config", "num_passes", "forwards"),
    [
        ({}, 1, 1),
        ({"off_policy_correction": "token_tis"}, 1, 1),
        ({"policy_ratio": "three_policy", "off_policy_correction": "token_tis"}, 1, 1),
        ({"entropy_coef": 0.1}, 1, 1),
        ({"kl_coef": 0.1, "kl_form": "reward_k1"}, 1, 1),
        # The base model as well.
        ({"kl_coef": 0.1}, 1, 2),
        ({}, 3, 3),
        # The log-probabilities before the first of several passes.
        ({"policy_ratio": "three_policy", "off_policy_correction": "token_tis"}, 3, 4),
    ],
)
def test_the_model_computes_nothing_that_the_choice_does_not_read(
    tiny_policy, batch, monkeypatch, config, num_passes, forwards
):
    count = 0
    forest_logprobs = training_learner.forest_logprobs

    def counted(*args, **kwargs):
        nonlocal count
        count += 1
        return forest_logprobs(*args, **kwargs)

    monkeypatch.setattr(training_learner, "forest_logprobs", counted)
    learning = SimpleNamespace(
        learner=TorchLearner(tiny_policy()),
        num_passes=num_passes,
        loss_fn="ppo",
        loss_config=CLIP | config,
        learning_rate=lambda _: 1e-3,
    )
    optimize(learning, batch, 1)
    assert count == forwards
