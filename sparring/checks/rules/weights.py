"""Rules on weights: the engine uses the weights that the learner trains, and these weights can be exported."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from sparring.assembly import TrainingParts
from sparring.checks.evidence.subject import Subject
from sparring.findings import Finding, Severity
from sparring.types import Completion, SampleRequest, Sampling, TokenSegment, TrainingBatch, TrainingSequence, Weights

MOST_APART = 0.05
"""The mean difference of log-probabilities, in nats, that rounding explains. 16-bit passes differ by about 0.01."""
NUM_TOKENS = 24
MINUTES = 10 * 60.0
CONFIRM = "Run `sparring check RECIPE --model --only weights` again: the finding is gone."


async def logprobs(subject: Subject) -> Iterable[Finding]:
    """The log-probabilities that the engine returns with sampled tokens match those that the learner computes.

    Policy-gradient losses use the ratio of the two. A mean difference above 0.05 nats is not due to rounding. It is due
    to a different temperature, different weights, or a different precision than those of the learner.
    """
    parts = subject.parts
    assert parts is not None, "the rule needs the model"
    prompt = _prompt(subject, parts)
    completion = await _sampled(subject, parts, prompt, "logprobs")
    recomputed = _recomputed(parts, prompt, completion, subject.config.sampling.temperature)
    return logprobs_apart(completion.sampled_logprobs, recomputed)


async def served(subject: Subject) -> Iterable[Finding]:
    """The engine samples with the weights that it receives, and reports their fingerprint.

    The rule temporarily loads changed weights into the engine. The engine's log-probabilities and its fingerprint must
    change with the weights, and must return to their old values afterwards. If the engine continues to sample with the
    base model, training has no effect, and no curve shows why. The rule does not check an engine that cannot return the
    log-probabilities of tokens that it receives, or that samples only with weights that its service has trained.
    """
    parts = subject.parts
    assert parts is not None, "the rule needs the model"
    can = parts.engine.capabilities
    if not (can.scores_given_ids and can.takes_any_weights):
        return ()
    prompt, before = _prompt(subject, parts), parts.learner.export_weights()
    version, mark = parts.engine.policy_version, parts.engine.fingerprint
    served_logprobs = await parts.engine.logprobs(prompt)
    changed = _changed(before)
    try:
        await parts.engine.load_weights(changed, version=version)
        other, other_mark = await parts.engine.logprobs(prompt), parts.engine.fingerprint
    finally:
        await parts.engine.load_weights(before, version=version)
    again = await parts.engine.logprobs(prompt)
    moved, back = _apart(served_logprobs, other), _apart(served_logprobs, again)
    problems = []
    if moved == 0.0:
        problems.append("it still returns the log-probabilities of the old weights")
    if other_mark != changed.fingerprint:
        problems.append("it does not report the fingerprint of the new weights")
    if back > 1e-4 or (parts.engine.fingerprint, mark) != (before.fingerprint, before.fingerprint):
        problems.append("it does not restore the old weights")
    if not problems:
        return ()
    return [
        Finding(
            rule="weights.served",
            severity=Severity.ERROR,
            symptom=f"the engine received other weights, but {' and '.join(problems)}.",
            evidence={
                "moved": moved,
                "back": back,
                "fingerprints": [mark, changed.fingerprint, other_mark, before.fingerprint],
            },
            change="Fix how the engine loads weights (its adapter, its cache of keys and values).",
            confirm=CONFIRM,
        )
    ]


async def export(subject: Subject) -> Iterable[Finding]:
    """The exported model can be loaded again.

    The rule writes the adapter, or the whole model if all weights are trained, into a temporary folder and reads it
    back. The names and shapes of the weights must be the same. After a night of training, it is too late to discover a
    defect.
    """
    from sparring.models.export import save_adapter, save_merged

    assert subject.parts is not None and subject.parts.policy is not None, "the rule needs the weights"  # noqa: PT018
    policy = subject.parts.policy
    is_adapter = subject.config.model.trained_weights == "lora"
    with tempfile.TemporaryDirectory(prefix="sparring-export-") as folder:
        try:
            if is_adapter:
                save_adapter(policy, Path(folder), base_model=subject.config.model.name)
            else:
                save_merged(policy, Path(folder))
            written = _read_back(Path(folder))
        except Exception as error:  # noqa: BLE001 - whatever the libraries raise is the finding
            return [_unexported(f"the export fails with {error!r}")]
    # Each library names the tensors differently, so only the shapes are compared.
    shapes = sorted(tuple(tensor.shape) for tensor in policy.trained.values())
    missing = [shape for shape in shapes if shape not in written]
    return [_unexported(f"tensors of shapes {missing[:3]} are not in the export")] if missing else ()


def logprobs_apart(sampled: Sequence[float], recomputed: Sequence[float]) -> list[Finding]:
    """Return a finding if two lists of log-probabilities for the same tokens differ by more than rounding can
    explain."""
    apart = _apart(sampled, recomputed)
    if len(sampled) == len(recomputed) and apart <= MOST_APART:
        return []
    return [
        Finding(
            rule="weights.logprobs",
            severity=Severity.ERROR,
            symptom=f"sampled and recomputed log-probabilities differ by {apart:.3f} nats per token.",
            evidence={"sampled": list(sampled[:8]), "recomputed": list(recomputed[:8]), "mean_difference": apart},
            change="Let engine and learner use the same weights, temperature and precision.",
            confirm=CONFIRM,
        )
    ]


def _unexported(what: str) -> Finding:
    return Finding(
        rule="weights.export",
        severity=Severity.ERROR,
        symptom=f"the trained weights cannot be exported and loaded again: {what}.",
        evidence={"problem": what},
        change="Fix the error that the message names. `sparring export` runs the same code.",
        confirm=CONFIRM,
    )


def _prompt(subject: Subject, parts: TrainingParts) -> tuple[int, ...]:
    task = next((one for one in subject.sample if one.messages), None)
    messages = task.messages if task is not None else ({"role": "user", "content": "Say a number."},)
    room = parts.engine.max_context_tokens - NUM_TOKENS
    return parts.chat.render(messages, parts.tools)[:room]


async def _sampled(subject: Subject, parts: TrainingParts, prompt: tuple[int, ...], purpose: str) -> Completion:
    name = f"check/{purpose}"
    sampling = Sampling(temperature=subject.config.sampling.temperature, max_tokens=NUM_TOKENS)
    request = SampleRequest(
        session_id=name, prompt_ids=prompt, sampling=sampling, stop_ids=frozenset(), seed=subject.config.run.seed
    )
    parts.engine.open_session(name)
    try:
        return await parts.engine.sample(request)
    finally:
        parts.engine.close_session(name)


def _recomputed(
    parts: TrainingParts, prompt: tuple[int, ...], completion: Completion, temperature: float
) -> list[float]:
    """Return the learner's log-probabilities for the same tokens."""
    given, sampled = len(prompt), len(completion.token_ids)
    segment = TokenSegment(
        parent=None,
        token_ids=(*prompt, *completion.token_ids),
        mask=(*(False,) * given, *(True,) * sampled),
        sampled_logprobs=(*(0.0,) * given, *completion.sampled_logprobs),
        advantages=(*(0.0,) * given, *(1.0,) * sampled),
        weights=(*(0.0,) * given, *(1.0,) * sampled),
        temperature=temperature,
    )
    batch = TrainingBatch(segments=(segment,), sequences=(TrainingSequence(segments=(0,), trajectory_id="check"),))
    return parts.learner.logprobs(batch)


def _changed(weights: Weights) -> Weights:
    from sparring.models.policy import fingerprint

    # Half of the weights of a new adapter are zero. Adding a constant changes them, and multiplying would not.
    tensors = {name: tensor + 0.05 for name, tensor in weights.tensors.items()}
    return Weights(tensors=tensors, fingerprint=fingerprint(tensors))


def _read_back(folder: Path) -> list[tuple[int, ...]]:
    from safetensors import safe_open

    shapes = []
    for file in folder.glob("*.safetensors"):
        with safe_open(str(file), framework="np") as tensors:
            shapes += [tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()]  # noqa: SIM118
    return shapes


def _apart(first: Sequence[float], second: Sequence[float]) -> float:
    return fmean(abs(one - other) for one, other in zip(first, second, strict=False)) if first and second else 0.0
