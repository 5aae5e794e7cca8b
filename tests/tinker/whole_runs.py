"""Runs on a real server, each of whose steps the learner of this process takes too."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparring.errors import ServiceError
from sparring.evaluator import MultiTurnRLEvaluator
from sparring.ledger import Ledger
from sparring.models.policy import LoraSettings, Policy
from sparring.models.tensor_files import TensorFile
from sparring.protocols import LearnerState, LossConfig
from sparring.serving.export import export
from sparring.tinker.learner import STATE_FILE, TinkerLearner
from sparring.trainer import MultiTurnRLTrainer, TrainResult
from sparring.training.learner import AdamWSettings, TorchLearner
from sparring.types import TrainingBatch, Weights
from tests.tinker.servers import KEY, ROOT, Server

RANK, ALPHA = 4, 32
LEAVES_SOCKETS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""For tests with the package `tinker` in their process: its versions before 0.38 do not close their connections."""
ADAM = AdamWSettings(grad_clip_norm=0.0)


def build_settings(server: Server, runs: Path, *more: str) -> list[str]:
    """Return the overrides of a run that trains and samples on a server. Its rewards are random, so that episodes of a group
    differ although the model has learned nothing."""
    return [
        "engine.type=tinker", "learner.type=tinker", f"learner.base_url={server.url}", f"learner.model={server.model}",
        "learner.api_key_env=SPARRING_TEST_TINKER_KEY", "model.trained_weights=lora", f"model.lora_rank={RANK}",
        f"model.lora_alpha={ALPHA}", f"model.name={server.model}", f"run.runs_dir={runs}", "run.name=run",
        "optimizer.adam_grad_clip_norm=0", "warm_start.num_demonstrations=8", "warm_start.steps=2",
        "warm_start.batch_size=4", "schedule.max_steps=2", "schedule.save_every=1", "schedule.val_every=0",
        "batch.global_batch_size=2", "batch.group_size=4", "reward.reward=environment:shuffled_reward",
        "evaluation.val_num_tasks=2", "evaluation.allow_zero_baseline=true", "environment.max_turns=2",
        "sampling.sampling_max_tokens=4", *more,
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Step:
    """What both learners reported about the parts of one step."""

    loss_fn: str
    losses: list[tuple[float, float]]
    norms: tuple[float, float]


@dataclass(kw_only=True)
class Comparison:
    """The learner of this process, and what both learners reported. It remains when a run is resumed."""

    model: Path
    steps: list[Step] = field(default_factory=list)
    before_step: Callable[[int], None] = lambda number: None
    """Called with the number of the step, counted from 1, before the optimizer takes it."""
    local: TorchLearner | None = None
    policy: Policy | None = None
    states: dict[str, Path] = field(default_factory=dict)
    """The folder of a copy of the local state, by the path of the state on the service."""

    def start(self, served: TinkerLearner) -> TorchLearner:
        """Return the learner of this process, with the adapter with which the service began."""
        if self.local is None:
            weights = served.export_weights()
            names = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in weights.tensors})
            lora = LoraSettings(rank=RANK, alpha=ALPHA, targets=tuple(names), is_merged=False)
            base, tokenizer = (
                AutoModelForCausalLM.from_pretrained(self.model),
                AutoTokenizer.from_pretrained(self.model),
            )
            self.policy = Policy(base, tokenizer, max_positions=256, lora=lora)
            self.policy.restore(weights.tensors)
            self.local = TorchLearner(self.policy, adam=ADAM)
        return self.local

    def weight_difference(self, checkpoint: Path) -> float:
        """Return the largest difference between the weights of a checkpoint and those of this process."""
        assert self.policy is not None
        tensors, found = self.policy.trained, TensorFile(checkpoint / "weights.safetensors")
        assert set(found) == set(tensors)
        return max((found[name] - value).abs().max().item() for name, value in tensors.items())


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """The largest differences to the learner of this process."""

    loss: float
    norm: float
    """Relative."""
    weight: float


EXACT = Tolerances(loss=1e-5, norm=1e-5, weight=1e-5)


@final
class Compared:
    """A learner that passes every call to that of a service and to that of this process."""

    def __init__(self, served: TinkerLearner, comparison: Comparison) -> None:
        self._served, self._comparison = served, comparison
        self._local = comparison.start(served)
        self._losses: list[tuple[float, float]] = []
        self._loss_fn = ""

    def forward_backward(
        self,
        batch: TrainingBatch,
        loss_fn: str,
        loss_config: LossConfig,
        old_logprobs: Sequence[float] | None = None,
    ) -> dict[str, float]:
        served = self._served.forward_backward(batch, loss_fn, loss_config, old_logprobs)
        local = self._local.forward_backward(batch, loss_fn, loss_config, old_logprobs)
        self._loss_fn = loss_fn
        self._losses.append((served["training/loss"], local["training/loss"]))
        return served

    def optim_step(self, learning_rate: float) -> dict[str, float]:
        self._comparison.before_step(len(self._comparison.steps) + 1)
        served, local = self._served.optim_step(learning_rate), self._local.optim_step(learning_rate)
        losses, self._losses = self._losses, []
        norms = (served["training/grad_norm"], local["training/grad_norm"])
        self._comparison.steps.append(Step(loss_fn=self._loss_fn, losses=losses, norms=norms))
        return served

    def reset_optimizer(self) -> None:
        self._served.reset_optimizer()
        self._local.reset_optimizer()

    def export_state(self) -> LearnerState:
        state, local = self._served.export_state(), self._local.export_state()
        folder = Path(tempfile.mkdtemp(prefix="sparring-compared-"))
        local.write(folder)
        self._comparison.states[state._path] = folder
        return state

    def load_state(self, directory: Path) -> None:
        self._served.load_state(directory)
        self._local.load_state(
            self._comparison.states[json.loads((directory / STATE_FILE).read_text("utf-8"))["state"]]
        )

    def load_weights(self, weights: Weights) -> None:
        self._served.load_weights(weights)
        self._local.load_weights(self._served.export_weights())

    def logprobs(self, batch: TrainingBatch) -> list[float]:
        return self._served.logprobs(batch)

    def reference_logprobs(self, batch: TrainingBatch) -> list[float]:
        return self._served.reference_logprobs(batch)

    def export_weights(self) -> Weights:
        return self._served.export_weights()

    @property
    def num_microbatches(self) -> int:
        return self._served.num_microbatches

    def close(self) -> None:
        self._served.close()


def compare(monkeypatch: pytest.MonkeyPatch, server: Server) -> Comparison:
    """Let the learner of this process take all steps of the runs of a test too."""
    comparison = Comparison(model=server.model)
    monkeypatch.setenv("SPARRING_TEST_TINKER_KEY", f"tml-{KEY}")
    monkeypatch.setattr(
        "sparring.tinker.learner.TinkerLearner",
        lambda service, **settings: Compared(TinkerLearner(service, **settings), comparison),
    )
    return comparison


def train(overrides: list[str]) -> TrainResult:
    result = MultiTurnRLTrainer(ROOT / "recipes/pointer_chase", overrides=overrides, check=False).train()
    assert result is not None
    return result


def train_through_a_kill(
    server: Server, comparison: Comparison, overrides: list[str], monkeypatch: pytest.MonkeyPatch, *, step: int
) -> TrainResult:
    """Train a run whose server is killed before a step, start the server again, and resume the run."""
    monkeypatch.setattr("sparring.tinker.sdk.PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr("sparring.tinker.sdk.CHECK_SECONDS", 0.5)
    comparison.before_step = lambda number: server.kill() if number == step else None
    with pytest.raises(ServiceError, match="has not answered for"):
        train(overrides)
    comparison.before_step = lambda number: None
    server.start()
    runs = next(one.partition("=")[2] for one in overrides if one.startswith("run.runs_dir="))
    resumed = MultiTurnRLTrainer.attach(Path(runs) / "run").train(resume=True)
    assert resumed is not None
    return resumed


def check(comparison: Comparison, run: Path, losses: Sequence[str], tolerances: Tolerances) -> None:
    """Check that the losses and gradients of all steps, and the weights after them, are those of the learner in this process, and
    that there were gradients."""
    assert [step.loss_fn for step in comparison.steps] == list(losses)
    for step in comparison.steps:
        for served, local in step.losses:
            assert served == pytest.approx(local, rel=tolerances.loss, abs=1e-5), step
        assert step.norms[0] == pytest.approx(step.norms[1], rel=tolerances.norm), step
        assert step.norms[0] > 1e-3, step
    newest = max((run / "checkpoints").glob("0*"))
    assert comparison.weight_difference(newest) < tolerances.weight


def run_everything(
    server: Server, comparison: Comparison, folder: Path, monkeypatch: pytest.MonkeyPatch, tolerances: Tolerances
) -> None:
    """Train a run through a kill of the server, export its adapter, and evaluate it on the held-out tasks."""
    overrides = build_settings(server, folder, "schedule.max_steps=3", "evaluation.eval_num_tasks=3")
    # The warm start takes two steps, so the fourth is the second of RL.
    trained = train_through_a_kill(server, comparison, overrides, monkeypatch, step=4)
    assert (trained.step, trained.status) == (3, "completed")
    check(comparison, trained.run, ["cross_entropy"] * 2 + ["ppo"] * 3, tolerances)
    with Ledger(trained.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
        assert sorted(ledger.consumed()) == [1, 2, 3]

    ids = torch.tensor([[5, 40, 77, 9, 120]])
    adapter = export(trained.run, folder / "exported")
    # As its users load it.
    exported = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(server.model), str(adapter)).eval()
    assert comparison.policy is not None
    difference = (exported(input_ids=ids).logits - comparison.policy.module(input_ids=ids).logits).abs().max().item()
    assert difference < 100 * tolerances.weight

    report = MultiTurnRLEvaluator(trained.run).evaluate()
    assert {one.name for one in report.evaluations} == {"base", "warm_start", "tuned"}
    assert {(one.split, len(one.task_ids)) for one in report.evaluations} == {("held_out", 3)}
