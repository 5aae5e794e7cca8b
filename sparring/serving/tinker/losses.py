"""The losses by Tinker's names, with Tinker's defaults, and the batches on which they are computed.

A loss is the plain sum over all targets of weight * term (https://tinker-docs.thinkingmachines.ai/tinker/losses). The terms
are those of `sparring.algorithms.losses`, and `dro`. Without `weights`, each weight is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sparring.algorithms.losses import LOSSES, PerToken, Tokens
from sparring.serving.tinker.answers import TokenLogprobs
from sparring.serving.tinker.refusal import Refusal
from sparring.serving.tinker.requests import Datum, ForwardInput
from sparring.types import TokenSegment, TrainingBatch, TrainingSequence


def dro(tokens: Tokens, *, beta: float) -> PerToken:
    """Return -(A * logprob - beta / 2 * (log rho) ** 2) (https://tinker-docs.thinkingmachines.ai/tinker/losses/dro)."""
    penalty_M = (tokens.logprobs_M - tokens.old_M).square()
    return -(tokens.logprobs_M * tokens.advantages_M - 0.5 * beta * penalty_M), {}


FUNCTIONS: Final[Mapping[str, Callable[..., PerToken]]] = {**LOSSES, "dro": dro}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLoss:
    """What a loss reads."""

    inputs: tuple[str, ...] = ("target_tokens", "logprobs", "advantages")
    """The inputs that each datum must have."""
    settings: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    """The default of each setting; None for one that must be given."""


NAMED: Final[Mapping[str, NamedLoss]] = {
    "cross_entropy": NamedLoss(inputs=("target_tokens",)),
    "importance_sampling": NamedLoss(),
    "ppo": NamedLoss(settings={"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    "cispo": NamedLoss(settings={"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    "dro": NamedLoss(settings={"beta": None}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """A loss on a batch."""

    loss_fn: str
    settings: Mapping[str, float]
    batch: TrainingBatch
    shapes: tuple[tuple[int, ...], ...]
    """The shape of the targets of each datum."""

    def divide(self, logprobs: Sequence[float]) -> tuple[TokenLogprobs, ...]:
        """Return the log-probabilities of each datum, from those of all targets in segment order."""
        outputs, begin = [], 0
        for shape in self.shapes:
            num_tokens, num_targets = shape[0], shape[1] if len(shape) > 1 else 1
            end = begin + num_tokens * num_targets
            # Each segment has one target per token.
            rows = [logprobs[begin + one : begin + one + num_tokens] for one in range(0, end - begin, num_tokens)]
            values = tuple(value for position in zip(*rows, strict=True) for value in position)
            outputs.append(TokenLogprobs(values=values, shape=shape))
            begin = end
        return tuple(outputs)


def build_computation(given: ForwardInput, *, max_tokens: int, vocabulary_size: int) -> Computation:
    """Return the computation that a client requests. Raises Refusal for an unknown loss, settings or inputs that the loss
    does not read, and data that do not fit the model."""
    named = NAMED.get(given.loss_fn)
    if named is None:
        raise Refusal(
            f"loss_fn: {given.loss_fn!r} is not computed here; use one of {', '.join(NAMED)}, or forward_backward_custom."
        )
    segments: list[TokenSegment] = []
    sequences: list[TrainingSequence] = []
    shapes: list[tuple[int, ...]] = []
    for index, datum in enumerate(given.data):
        try:
            shape, own = _build_segments(datum, named, max_tokens=max_tokens, vocabulary_size=vocabulary_size)
        except Refusal as refusal:
            raise Refusal(f"data.{index}: {refusal}") from None
        shapes.append(shape)
        for segment in own:
            sequences.append(TrainingSequence(segments=(len(segments),), trajectory_id=str(index)))
            segments.append(segment)
    return Computation(
        loss_fn=given.loss_fn,
        settings=_read_settings(given.loss_fn_config or {}, named),
        batch=TrainingBatch(segments=tuple(segments), sequences=tuple(sequences)),
        shapes=tuple(shapes),
    )


def _read_settings(given: Mapping[str, float | str], named: NamedLoss) -> dict[str, float]:
    settings: dict[str, float] = {name: value for name, value in named.settings.items() if value is not None}
    for name, value in given.items():
        if name not in named.settings:
            known = ", ".join(named.settings) or "none"
            raise Refusal(f"loss_fn_config: this loss has no setting {name!r}; it has {known}.")
        if isinstance(value, str):
            raise Refusal(f"loss_fn_config.{name}: {value!r} is a text; give a number.")
        settings[name] = value
    missing = [name for name in named.settings if name not in settings]
    if missing:
        raise Refusal(f"loss_fn_config: this loss needs {missing[0]!r}, which has no default.")
    return settings


def _build_segments(
    datum: Datum, named: NamedLoss, *, max_tokens: int, vocabulary_size: int
) -> tuple[tuple[int, ...], list[TokenSegment]]:
    """Return the shape of the targets, and one segment for each column of targets. Raises Refusal.

    The model reads the input and predicts a target after each of its tokens. Log-probabilities are at temperature 1.
    """
    ids, inputs = datum.model_input.token_ids, datum.loss_fn_inputs
    for name in named.inputs:
        if name not in inputs:
            raise Refusal(f"loss_fn_inputs: this loss needs {name!r}.")
    unread = sorted(inputs.keys() - {*named.inputs, "weights"})
    if unread:
        raise Refusal(f"loss_fn_inputs: this loss does not read {unread[0]!r}; remove it.")
    shape = inputs["target_tokens"].whole_shape
    if not ids or len(ids) > max_tokens:
        raise Refusal(f"model_input: {len(ids)} tokens; the model reads from 1 to {max_tokens}.")
    if len(shape) not in (1, 2) or shape[0] != len(ids) or 0 in shape:
        raise Refusal(
            f"target_tokens: the shape {list(shape)} does not fit {len(ids)} tokens; give one target for each."
        )
    for name, tensor in inputs.items():
        if tensor.whole_shape != shape:
            raise Refusal(f"{name}: the shape {list(tensor.whole_shape)} is not that of the targets, {list(shape)}.")
    targets = [int(value) for value in inputs["target_tokens"].data]
    if not all(0 <= token < vocabulary_size for token in (*ids, *targets)):
        raise Refusal(f"a token is not in the vocabulary, which has {vocabulary_size} tokens.")
    width = shape[1] if len(shape) > 1 else 1
    zeros, ones = [0.0] * len(targets), [1.0] * len(targets)
    columns = [
        inputs[name].data if name in inputs else default
        for name, default in (("logprobs", zeros), ("advantages", zeros), ("weights", ones))
    ]
    segments = []
    for column in range(width):
        own = targets[column::width]
        sampled, advantages, weights = ((0.0, *values[column::width]) for values in columns)
        segments.append(
            TokenSegment(
                parent=None,
                token_ids=(*ids, own[-1]),
                mask=(False, *[True] * len(ids)),
                sampled_logprobs=sampled,
                advantages=advantages,
                weights=weights,
                temperature=1.0,
                targets=(0, *own),
            )
        )
    return shape, segments
