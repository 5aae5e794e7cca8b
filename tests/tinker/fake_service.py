"""A service that computes in this process, with the deviations from Tinker's contract that real services have."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor

from sparring.errors import ServiceError
from sparring.models.adapter_files import AdapterShape
from sparring.models.policy import Policy
from sparring.tinker.formulas import PLAIN, Formula, Shape
from sparring.tinker.sdk import _extract
from sparring.tinker.service import AdamStep, Row, Sample

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Deviations:
    """How a service differs from Tinker's contract."""

    formula: Formula = PLAIN
    takes_absolute: bool = False
    """Whether it multiplies each row by the sign of the sum of its weights, an unknown formula."""
    clips_gradients: bool = True
    bounds_ratios: bool = True
    has_ppo: bool = True
    reports_norms: bool = True
    sampling_restores: bool = False
    """Whether sampling with earlier weights puts these back into training."""
    leaks_padding: bool = False
    divisor: Callable[[Row], float] = lambda row: 1.0
    """A divisor of each row's loss that no known formula has."""
    forgets_adapters: bool = False
    """Whether it samples only with weights whose adapter has not been unloaded."""


@dataclass
class FakeService:
    """Trains adapters of the policies that `build` returns. Implements `sparring.tinker.service.Service`."""

    build: Callable[[], Policy]
    shape: AdapterShape
    deviations: Deviations = Deviations()
    token_seconds: Callable[[Sequence[int]], float] = lambda prompt: 0.0
    """The time that each token of an answer to a prompt takes."""
    name: str = "the fake service"
    log: list[str] = field(default_factory=list)
    """The verbs so far, with the number of rows of passes."""
    stored: dict[str, tuple[FakeTrainer, dict[str, Tensor], Any]] = field(default_factory=dict)
    is_down: bool = False

    def create(self, *, rank: int, seed: int) -> FakeTrainer:
        self.check("create")
        assert rank == self.shape.rank
        return FakeTrainer(self, self.build())

    def restore(self, path: str, *, with_optimizer: bool) -> FakeTrainer:
        self.check("restore")
        if path not in self.stored:
            raise ServiceError(f"{self.name} has stored nothing at {path}.")
        _, tensors, moments = self.stored[path]
        trainer = FakeTrainer(self, self.build())
        trainer.policy.restore(tensors)
        if with_optimizer:
            trainer.optimizer.load_state_dict(copy.deepcopy(moments))
        return trainer

    def create_sampler(self, path: str | None) -> FakeSampler:
        self.check("create_sampler")
        policy = self.build()
        if path is not None:
            policy.restore(self.stored[path][1])
        return FakeSampler(self, policy, path)

    def download(self, path: str, folder: Path) -> None:
        self.check("download")
        tensors = {name.replace(".default.", "."): one.contiguous() for name, one in self.stored[path][1].items()}
        config = {"peft_type": "LORA", "r": self.shape.rank, "lora_alpha": self.shape.alpha}
        with tarfile.open(folder / "archive", "w:gz") as tar:
            for name, content in (
                ("./adapter_model.safetensors", save(tensors)),
                ("./adapter_config.json", json.dumps(config).encode()),
                ("../outside", b"never written"),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        _extract(folder / "archive", folder)

    def close(self) -> None:
        self.log.append("close")

    def check(self, verb: str) -> None:
        self.log.append(verb)
        if self.is_down:
            raise ServiceError(f"{self.name} cannot be reached.")


class Computed(Generic[Value]):
    """The answer to a request, which is computed when it or a later one is awaited."""

    def __init__(self, trainer: FakeTrainer, run: Callable[[], Value]) -> None:
        self._trainer, self._run = trainer, run
        self._found: list[Value] = []
        self._failure: Exception | None = None

    def compute(self) -> None:
        try:
            self._found.append(self._run())
        except ServiceError as error:
            self._failure = error

    def result(self) -> Value:
        while not self._found and self._failure is None:
            self._trainer.queue.pop(0).compute()
        if self._failure is not None:
            raise self._failure
        return self._found[0]


class FakeTrainer:
    """An adapter in training. Implements `sparring.tinker.service.Trainer`."""

    def __init__(self, service: FakeService, policy: Policy) -> None:
        self.service, self.policy = service, policy
        self.optimizer = torch.optim.AdamW(list(policy.trained.values()), lr=0.0)
        self.queue: list[Computed[Any]] = []
        self.is_loaded = True
        self.passes: list[tuple[list[Row], str, Mapping[str, float]]] = []
        """The passes since the last step. A service that divides by the rows of a step divides when it takes the step."""

    def forward(self, rows: Sequence[Row]) -> Computed[list[list[float]]]:
        return self._submit(f"forward {len(rows)}", lambda: self._score(rows))

    def forward_backward(
        self, rows: Sequence[Row], loss_fn: str, loss_config: Mapping[str, float] | None = None
    ) -> Computed[list[list[float]]]:
        def run() -> list[list[float]]:
            if loss_fn == "ppo" and not self.service.deviations.has_ppo:
                raise ServiceError(f"{self.service.name} has no loss ppo.")
            self.passes.append((list(rows), loss_fn, loss_config or {}))
            return self._score(rows)

        return self._submit(f"forward_backward {len(rows)} {loss_fn}", run)

    def optim_step(self, step: AdamStep) -> Computed[dict[str, float]]:
        return self._submit("optim_step", lambda: self._step(step))

    def save_state(self, name: str) -> str:
        return self._submit("save_state", lambda: self._store(f"fake://{name}/state")).result()

    def save_sampler(self, name: str) -> str:
        return self._submit("save_sampler", lambda: self._store(f"fake://{name}/sampler")).result()

    def close(self) -> None:
        self.service.log.append("unload")
        self.is_loaded = False

    def _submit(self, verb: str, run: Callable[[], Value]) -> Computed[Value]:
        self.service.check(verb)
        answer = Computed(self, run)
        self.queue.append(answer)
        return answer

    def _store(self, path: str) -> str:
        tensors = {name: one.detach().clone() for name, one in self.policy.trained.items()}
        self.service.stored[path] = (self, tensors, copy.deepcopy(self.optimizer.state_dict()))
        return path

    def _score(self, rows: Sequence[Row]) -> list[list[float]]:
        shift = 1.0 if self.service.deviations.leaks_padding and len({len(row.token_ids) for row in rows}) > 1 else 0.0
        with torch.no_grad():
            return [[value - shift for value in compute_logprobs(self.policy, row.token_ids).tolist()] for row in rows]

    def _step(self, step: AdamStep) -> dict[str, float]:
        deviations = self.service.deviations
        rows = [(row, *rest) for rows, *rest in self.passes for row in rows]
        self.passes = []
        # A loss other than cross_entropy has weights that are all 1.
        totals = [sum(row.weights) if row.weights else float(row.num_targets) for row, *_ in rows]
        shapes = [Shape(1.0, row.num_targets, total) for (row, *_), total in zip(rows, totals, strict=True)]
        self.optimizer.zero_grad()
        for (row, loss_fn, config), total, factor in zip(rows, totals, deviations.formula.factors(shapes), strict=True):
            sign = -1.0 if deviations.takes_absolute and total < 0 else 1.0
            (factor * sign / deviations.divisor(row) * self._loss(row, loss_fn, config)).backward()
        parameters = list(self.policy.trained.values())
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        limit = step.grad_clip_norm if deviations.clips_gradients and step.grad_clip_norm else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit).item()
        for group in self.optimizer.param_groups:
            group |= {
                "lr": step.learning_rate,
                "betas": (step.beta1, step.beta2),
                "eps": step.eps,
                "weight_decay": step.weight_decay,
            }
        self.optimizer.step()
        return {"fake/grad_norm:mean": norm} if deviations.reports_norms else {}

    def _loss(self, row: Row, loss_fn: str, config: Mapping[str, float]) -> Tensor:
        logprobs = compute_logprobs(self.policy, row.token_ids)
        if loss_fn == "cross_entropy":
            return -(torch.tensor(row.weights) * logprobs).sum()
        ratio, advantages = (logprobs - torch.tensor(row.logprobs)).exp(), torch.tensor(row.advantages)
        if loss_fn == "ppo" and self.service.deviations.bounds_ratios:
            bounded = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
            return -torch.minimum(ratio * advantages, bounded * advantages).sum()
        return -(ratio * advantages).sum()


class FakeSampler:
    """A version of the weights. Implements `sparring.tinker.service.Sampler`."""

    def __init__(self, service: FakeService, policy: Policy, path: str | None) -> None:
        self._service, self._policy, self._path = service, policy, path

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        stop_ids: Sequence[int],
        seed: int,
    ) -> Sample:
        self._service.check("sample")
        is_loaded = self._path is None or self._service.stored[self._path][0].is_loaded
        if self._service.deviations.forgets_adapters and not is_loaded:
            raise ServiceError(f"{self._service.name} has unloaded the adapter of {self._path}.")
        if self._service.deviations.sampling_restores and self._path is not None:
            trainer, tensors, _ = self._service.stored[self._path]
            trainer.policy.restore(tensors)
        random, ids, logprobs = torch.Generator().manual_seed(seed), list(prompt_ids), list[float]()
        while len(logprobs) < max_tokens and not (logprobs and ids[-1] in stop_ids):
            await asyncio.sleep(self._service.token_seconds(prompt_ids))
            with torch.no_grad():
                logits = self._policy.module(input_ids=torch.tensor([ids])).logits[0, -1]
            chances = (logits / (temperature or 1.0)).softmax(-1)
            token = int(chances.argmax() if temperature == 0 else torch.multinomial(chances, 1, generator=random))
            ids.append(token)
            logprobs.append(logits.log_softmax(-1)[token].item())
        sampled = tuple(ids[len(prompt_ids) :])
        return Sample(token_ids=sampled, logprobs=tuple(logprobs), has_stopped=sampled[-1] in stop_ids)

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        self._service.check("logprobs")
        with torch.no_grad():
            return compute_logprobs(self._policy, token_ids).tolist()


def compute_logprobs(policy: Policy, token_ids: Sequence[int]) -> Tensor:
    """Return the log-probability of each id except the first."""
    ids = torch.tensor([list(token_ids)])
    logprobs = policy.module(input_ids=ids[:, :-1]).logits[0].log_softmax(-1)
    return logprobs.gather(-1, ids[0, 1:, None])[:, 0]
