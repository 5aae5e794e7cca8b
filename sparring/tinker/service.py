"""The verbs of a service that speaks the Tinker API, as this package uses them.

`sdk.SdkService` implements these protocols with the package `tinker`. Values are numbers, token ids and file names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from sparring.errors import ServiceError
from sparring.runtime import event_loop

Value = TypeVar("Value", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A sequence of a forward and backward pass.

    The inputs are `token_ids` without the last id, and the targets are `token_ids` without the first. The other fields
    have one number for each target.
    """

    token_ids: tuple[int, ...]
    weights: tuple[float, ...] = ()
    """The factor of each target's loss, for the loss `cross_entropy`."""
    logprobs: tuple[float, ...] = ()
    """The denominator of the ratio, as a log-probability, for the other losses."""
    advantages: tuple[float, ...] = ()
    """The factor of each target's loss, for the other losses."""

    @property
    def num_targets(self) -> int:
        return len(self.token_ids) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """The layers that get an adapter, as far as clients can choose them."""

    attention: bool = True
    mlp: bool = True
    output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamStep:
    """The parameters of one AdamW step. With a `grad_clip_norm` of 0, the gradient is not clipped."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sampled answer. `logprobs` has one number for each of `token_ids`."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    has_stopped: bool
    """Whether the answer ended with a stop id."""
    num_dropped: int = 0
    """The number of ids that the service sampled after these."""


def align_scores(found: Sequence[float | None], num_ids: int, name: str) -> list[float]:
    """Return the log-probability of each id except the first. Raises ServiceError if the service `name` returned fewer.

    Tinker's list begins with None for the first id. SkyRL's JAX back end leaves that element out.
    """
    scored = [float(one) for one in found[max(0, len(found) - num_ids + 1) :] if one is not None]
    if len(scored) != num_ids - 1:
        raise ServiceError(
            f"{name} returned {len(scored)} log-probabilities of {num_ids} given ids. Use another engine."
        )
    return scored


def check_targets(found: Sequence[Sequence[float]], rows: Sequence[Row], name: str) -> None:
    """Raise ServiceError unless a pass of the service `name` returned one log-probability for each target of each row."""
    counts, expected = [len(one) for one in found], [row.num_targets for row in rows]
    if counts != expected:
        raise ServiceError(
            f"{name} returned {sum(counts)} log-probabilities for {len(counts)} rows, but {len(expected)} rows with "
            f"{sum(expected)} targets were sent, or they are divided otherwise. Use another service."
        )


class Pending(Protocol[Value]):
    """The result of a request that has been sent."""

    def result(self) -> Value:
        """Wait for the result. Raises ServiceError if the service refuses the request or cannot be reached, and Cancelled
        if the calling computation was abandoned."""
        ...


class Trainer(Protocol):
    """An adapter in training on the service. Requests take effect in the order in which they are sent.

    Every method raises the errors of `Pending.result`.
    """

    def forward(self, rows: Sequence[Row]) -> Pending[list[list[float]]]:
        """Compute the log-probability of each target of each row, at temperature 1."""
        ...

    def forward_backward(
        self, rows: Sequence[Row], loss_fn: str, loss_config: Mapping[str, float] | None = None
    ) -> Pending[list[list[float]]]:
        """Add the gradient of a loss to the accumulated one, and compute the log-probability of each target."""
        ...

    def optim_step(self, step: AdamStep) -> Pending[dict[str, float]]:
        """Take an AdamW step, and set the gradient to zero. The result are the service's metrics."""
        ...

    def save_state(self, name: str) -> str:
        """Store weights and moments on the service, and return their path."""
        ...

    def save_sampler(self, name: str) -> str:
        """Store the weights for sampling on the service, and return their path."""
        ...

    def close(self) -> None:
        """Release the adapter, if the service can."""
        ...


class Sampler(Protocol):
    """One version of the weights, ready for sampling."""

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
        """Continue a prompt. Raises ServiceError if the service does not answer."""
        ...

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each id except the first, at temperature 1. Raises ServiceError."""
        ...


class Service(Protocol):
    """A connection to a service. Every method raises ServiceError if the service refuses or does not answer."""

    @property
    def name(self) -> str:
        """The service and its model, for messages."""
        ...

    def create(self, *, rank: int, seed: int) -> Trainer:
        """Create a new adapter, without effect on the model."""
        ...

    def restore(self, path: str, *, with_optimizer: bool) -> Trainer:
        """Create an adapter from a stored state."""
        ...

    def create_sampler(self, path: str | None) -> Sampler:
        """Return a sampler of stored weights, or of the base model if `path` is None."""
        ...

    def download(self, path: str, folder: Path) -> None:
        """Write `adapter_model.safetensors` and `adapter_config.json` of weights for sampling into a folder."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def sample_token(sampler: Sampler, prompt_ids: Sequence[int]) -> Sample:
    """Sample one token, from a thread without an event loop. Raises ServiceError."""
    sampling = sampler.sample(prompt_ids, max_tokens=1, temperature=1.0, top_p=1.0, stop_ids=(), seed=0)
    return event_loop.submit(sampling).result()
