"""The package tinker, unchanged, trains and samples with this server. `make tinker-server` runs these tests with three of its
versions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sparring.models.policy import Policy
from sparring.serving.tinker.losses import FUNCTIONS
from sparring.training.learner import AdamWSettings, TorchLearner
from sparring.types import TokenSegment, TrainingBatch, TrainingSequence
from tests.serving.tinker.conftest import KEY, Serve, Server
from tests.serving.tinker.test_training import reference_policy, target_logprobs, weights_of
from tests.serving.tinker.values import ADVANTAGES, IDS, LOSSES, SAMPLED

CLIENT = Path(__file__).with_name("client.py")


async def run_client(python: str, server: Server, *arguments: str) -> dict[str, Any]:
    """Return what the client prints. Another process computes it."""
    process = await asyncio.create_subprocess_exec(
        *(python, "-W", "ignore", str(CLIENT), server.address, f"tml-{KEY}", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-4000:]
    return json.loads(out.splitlines()[-1])


def as_batch(loss: str, *scales: float) -> TrainingBatch:
    """Return the batch that a run of this program would train on: one sequence for each scale."""
    advantages = ADVANTAGES if loss != "cross_entropy" else [0.0] * 7
    segments = []
    for scale in scales:
        scaled = tuple(scale * one for one in ADVANTAGES)
        segments.append(
            TokenSegment(
                parent=None,
                token_ids=tuple(IDS),
                mask=(False, *[True] * 7),
                sampled_logprobs=(0.0, *(SAMPLED if loss != "cross_entropy" else [0.0] * 7)),
                advantages=(0.0, *(scale * one for one in advantages)),
                weights=(0.0, *(scaled if loss == "cross_entropy" else [1.0] * 7)),
                temperature=1.0,
            )
        )
    sequences = tuple(TrainingSequence(segments=(one,), trajectory_id=str(one)) for one in range(len(segments)))
    return TrainingBatch(segments=tuple(segments), sequences=sequences)


def train_here(policy: Policy, loss: str, num_steps: int) -> list[tuple[list[float], float]]:
    """Return the losses and the gradient norm of each step of the learner in this process."""
    adam = AdamWSettings(beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.1, grad_clip_norm=5.0)
    learner = TorchLearner(policy, adam=adam, losses=FUNCTIONS)
    steps = []
    for _ in range(num_steps):
        losses = [
            learner.forward_backward(batch, loss, LOSSES[loss] or {})["training/loss"]
            for batch in (as_batch(loss, 1.0, 0.5), as_batch(loss, -2.0))
        ]
        steps.append((losses, learner.optim_step(0.01)["training/grad_norm"]))
    return steps


def test_five_steps_of_each_loss_equal_those_of_the_learner_in_this_process(serve: Serve, client_python: str) -> None:
    async def run() -> None:
        async with serve() as server:
            found = await run_client(client_python, server, "losses")
            for loss in LOSSES:
                policy = reference_policy()
                expected = train_here(policy, loss, 5)
                for step, (losses, norm) in zip(found[loss]["steps"], expected, strict=True):
                    assert [one["metrics"]["loss:sum"] for one in step["passes"]] == pytest.approx(
                        losses, rel=1e-5, abs=1e-5
                    )
                    assert step["grad_norm"] == pytest.approx(norm, rel=1e-5)
                trained = weights_of(server, found[loss]["run"])
                for name, value in policy.snapshot().tensors.items():
                    torch.testing.assert_close(trained[name], value, rtol=1e-5, atol=1e-5)

    asyncio.run(run())


def test_a_loss_that_the_client_computes_has_its_exact_gradient(serve: Serve, client_python: str) -> None:
    async def run() -> None:
        policy = reference_policy()
        (target_logprobs(policy.module) ** 2).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.trained.values(), 1e9).item()
        async with serve() as server:
            found = await run_client(client_python, server, "custom")
        assert found["grad_norm"] == pytest.approx(norm, rel=1e-4)

    asyncio.run(run())


def test_samples_and_their_log_probabilities_reach_the_client(serve: Serve, client_python: str) -> None:
    async def run() -> None:
        async with serve() as server:
            found = await run_client(client_python, server, "sample")
        assert found["models"] == ["tiny"]
        assert found["reasons"] == ["length", "length"]
        # The same weights under a name, with the same seed.
        assert found["sequences"][0] == found["sequences"][1]
        assert [len(one["tokens"]) for one in found["sequences"][0]] == [5, 5]
        assert found["scored"] == found["prompt_logprobs"]
        assert found["scored"][0] is None
        expected = target_logprobs(reference_policy().module).tolist()
        assert found["scored"][1:] == pytest.approx(expected, abs=1e-4)

    asyncio.run(run())


def test_a_client_continues_bit_for_bit_on_a_new_server(serve: Serve, client_python: str) -> None:
    async def run() -> None:
        async with serve() as server:
            whole = await run_client(client_python, server, "train", "4")
            expected = weights_of(server, whole["run"])
            half = await run_client(client_python, server, "train", "2")
        async with serve() as server:
            continued = await run_client(client_python, server, "resume", half["path"])
            found = weights_of(server, continued["run"])
        assert continued["steps"] == whole["steps"][2:]
        assert all(torch.equal(found[name], expected[name]) for name in expected)

    asyncio.run(run())


def test_two_clients_at_once_get_what_each_gets_alone(serve: Serve, client_python: str) -> None:
    async def run() -> None:
        async with serve() as server:
            alone = await run_client(client_python, server, "train", "3")
            both = await asyncio.gather(*(run_client(client_python, server, "train", "3") for _ in range(2)))
        assert all(one["steps"] == alone["steps"] for one in both)

    asyncio.run(run())


def test_a_client_downloads_an_adapter(serve: Serve, client_python: str) -> None:
    async def run() -> None:
        async with serve() as server:
            found = await run_client(client_python, server, "download")
        assert found["path"] in found["listed"]
        assert all(size > 100 for size in found["sizes"].values())

    asyncio.run(run())


def test_a_client_gets_the_reason_of_a_refusal_and_can_go_on(serve: Serve, client_python: str) -> None:
    async def run() -> None:
        async with serve() as server:
            found = await run_client(client_python, server, "refuse")
        vocabulary, step, base = found["errors"]
        assert "vocabulary" in vocabulary
        assert "no step was taken" in step
        assert "this server has 'tiny'" in base
        assert found["grad_norm"] > 0

    asyncio.run(run())
