"""Use a Tinker server through the installed version of the package `tinker`, and print what was found as JSON.

python -m tests.tinker.sdk_session http://127.0.0.1:8211 MODEL_FOLDER
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparring.models.adapter_files import AdapterShape
from sparring.models.policy import LoraSettings, Policy
from sparring.tinker.engine import TinkerEngine
from sparring.tinker.formulas import Plan
from sparring.tinker.learner import TinkerLearner
from sparring.tinker.probe import probe
from sparring.tinker.sdk import SdkService
from sparring.training.learner import AdamWSettings, TorchLearner
from sparring.training.sequences import with_values
from sparring.types import SampleRequest, Sampling, TokenSegment, TrainingBatch, TrainingSequence, Weights

SHAPE = AdapterShape(rank=4, alpha=32)
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ADAM = AdamWSettings(grad_clip_norm=0.0)
LOSSES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2, "dual_clip": 3.0}),
    ("gspo", {}),
    ("importance_sampling", {"off_policy_correction": "token_tis"}),
    ("cispo", {"kl_coef": 0.05}),
    ("dppo_tv", {}),
)


def main(url: str, model: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    service = SdkService(url, model=str(model), api_key="tml-dummy")
    probed = probe(service, rank=SHAPE.rank, vocabulary_size=250, samples=True)
    learner = TinkerLearner(service, shape=SHAPE, plan=probed.plan, adam=ADAM)
    policy = load_policy(model)
    policy.restore(learner.export_weights().tensors)
    local, batch = TorchLearner(policy, adam=ADAM), build_batch()
    batch = with_values(batch, [one + 0.3 * (-1) ** place for place, one in enumerate(local.logprobs(batch))])
    steps = []
    for loss_fn, config in LOSSES:
        before = learner.logprobs(batch)
        pair = [one.forward_backward(batch, loss_fn, config) | one.optim_step(2e-3) for one in (learner, local)]
        steps.append(
            {
                "loss_fn": loss_fn,
                **{name: [one[f"training/{name}"] for one in pair] for name in ("loss", "grad_norm")},
                "logprob_difference": distance(learner.logprobs(batch), local.logprobs(batch)),
                "logprob_change": distance(before, learner.logprobs(batch)),
            }
        )
    weights = learner.export_weights()
    differences = [(weights.tensors[name] - one).abs().max().item() for name, one in policy.trained.items()]
    found = {
        "version": version("tinker"),
        "formula": str(probed.formula),
        "clips_gradients": probed.clips_gradients,
        "bounds_ratios": probed.bounds_ratios,
        "sampling_restores": probed.sampling_restores,
        "factor_of_negative": probed.factor_of_negative,
        "steps": steps,
        "weight_difference": max(differences),
        "wrong": unplanned(service, batch),
        **asyncio.run(sampled(service, weights, learner, batch)),
        **restored(learner, service, batch, probed.plan),
    }
    service.close()
    return found


def load_policy(model: Path) -> Policy:
    base, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    lora = LoraSettings(rank=SHAPE.rank, alpha=SHAPE.alpha, targets=TARGETS)
    return Policy(base, tokenizer, max_positions=256, lora=lora)


def build_batch() -> TrainingBatch:
    """Return three trajectories with advantages of both signs, one of which forks."""
    random = torch.Generator().manual_seed(2)

    def segment(parent: int | None, length: int, num_trained: int) -> TokenSegment:
        mask = (False,) * (length - num_trained) + (True,) * num_trained
        values = torch.randn(2, length, generator=random).tolist()
        return TokenSegment(
            parent=parent,
            token_ids=tuple(torch.randint(10, 250, (length,), generator=random).tolist()),
            mask=mask,
            sampled_logprobs=(0.0,) * length,
            advantages=tuple(one if trained else 0.0 for one, trained in zip(values[0], mask, strict=True)),
            weights=tuple(
                0.05 + 0.01 * abs(one) if trained else 0.0 for one, trained in zip(values[1], mask, strict=True)
            ),
            temperature=1.0,
        )

    lines = ((None, 9, 4), (0, 5, 3), (0, 7, 2), (None, 12, 6), (None, 6, 2))
    paths = (((0, 1), "a"), ((0, 2), "a"), ((3,), "b"), ((4,), "c"))
    return TrainingBatch(
        segments=tuple(segment(*line) for line in lines),
        sequences=tuple(TrainingSequence(segments=path, trajectory_id=name) for path, name in paths),
    )


def unplanned(service: SdkService, batch: TrainingBatch) -> dict[str, list[float]]:
    """Return the gradient norms with the service's formula taken for a plain sum, for the batch and for twice its weights."""
    learner = TinkerLearner(service, shape=SHAPE, plan=Plan(), adam=ADAM)
    doubled = tuple(replace(one, weights=tuple(2 * weight for weight in one.weights)) for one in batch.segments)
    norms = []
    for one in (batch, replace(batch, segments=doubled)):
        learner.forward_backward(one, "ppo", {})
        norms.append(learner.optim_step(0.0)["training/grad_norm"])
    learner._trainer.close()
    return {"norms": norms}


async def sampled(
    service: SdkService, weights: Weights, learner: TinkerLearner, batch: TrainingBatch
) -> dict[str, Any]:
    engine = TinkerEngine(service, weights=weights, max_context_tokens=256)
    prompt = (12, 40, 33, 71)

    def request(**changes: Any) -> SampleRequest:
        sampling = Sampling(max_tokens=8, temperature=1.0)
        return SampleRequest(**({"session_id": "s", "prompt_ids": prompt, "sampling": sampling, "seed": 3,
                                 "stop_ids": frozenset()} | changes))  # fmt: skip

    whole = await engine.sample(request())
    stopped = await engine.sample(request(stop_ids=frozenset({whole.token_ids[2]})))
    scored = await engine.logprobs([*prompt, *whole.token_ids])
    return {
        "sampled": whole.token_ids,
        "stopped": [stopped.token_ids, stopped.stop_reason.value],
        "sampler_difference": distance(scored[len(prompt) - 1 :], whole.sampled_logprobs),
    }


def restored(learner: TinkerLearner, service: SdkService, batch: TrainingBatch, plan: Plan) -> dict[str, Any]:
    """Return how far a restored learner is from one that went on, after one more step of both."""
    with tempfile.TemporaryDirectory() as name:
        learner.export_state().write(Path(name))
        other = TinkerLearner(service, shape=SHAPE, seed=7, plan=plan, adam=ADAM)
        other.load_state(Path(name))
    for one in (learner, other):
        one.forward_backward(batch, "ppo", {})
        one.optim_step(2e-3)
    return {"restored_difference": distance(learner.logprobs(batch), other.logprobs(batch))}


def distance(one: Any, other: Any) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))  # noqa: T201
