"""Load checkpoints of a run as versions of a served policy, and check that vLLM servers compute with their weights."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import final

from sparring.assembly.engines import Announce
from sparring.errors import ServiceError, UsageError
from sparring.evaluation.policies import BEST, checkpoint_of, run_and_step
from sparring.gateway import Version
from sparring.models.policy import Policy
from sparring.protocols import Chat, Engine, Learner
from sparring.run_folders import RunFolder
from sparring.training import checkpoints
from sparring.training.handshake import PROBE_TOKENS, build_probe, compare
from sparring.types import Weights

_PROBE = (
    "List the tools that you can call, and name the one that you would call first, with its arguments. Then state in one "
    "sentence what its result would show, and how you would check it."
)
"""The text of the probe. It is fixed, so that the differences of two starts can be compared."""


@final
class Probe:
    """Compares the log-probabilities of a fixed text with those of the trained weights, computed in this process."""

    def __init__(self, learner: Learner, chat: Chat, announce: Announce) -> None:
        """Create a probe. `learner` computes in fp32, and its weights change with each check. `announce` gets a line
        with each measured difference."""
        self._learner, self._announce = learner, announce
        self._token_ids = chat.render([{"role": "user", "content": _PROBE}], ())[:PROBE_TOKENS]

    async def check(self, name: str, engine: Engine, weights: Weights) -> None:
        """Raise ServiceError if the engine does not compute with these weights."""
        learned, base = await asyncio.to_thread(self._score, weights)
        found = compare(await engine.logprobs(self._token_ids), learned, base)
        if found.is_other:
            raise ServiceError(
                f"{name} is not served: the servers compute without its adapter. Their log-probabilities of one text differ by "
                f"{found.from_other:.3g} per token from those of the base model, and by {found.difference:.3g} from those of "
                "the trained weights. Start the servers again."
            )
        if found.is_too_large:
            raise ServiceError(
                f"{name} is not served: the servers compute with other weights. Their log-probabilities of one text differ by "
                f"{found.difference:.3g} per token from those of the trained weights. Check that they serve the base model of "
                "the run, and start them again."
            )
        self._announce(
            f"{name}: the log-probabilities of {len(self._token_ids) - 1} tokens differ from those of the trained weights by "
            f"{found.difference:.2g} per token (from the base model's by {found.from_other:.2g})"
        )

    def _score(self, weights: Weights) -> tuple[list[float], list[float]]:
        batch = build_probe(self._token_ids)
        self._learner.load_weights(weights)
        return self._learner.logprobs(batch), self._learner.reference_logprobs(batch)


@final
class RunVersions:
    """The checkpoints of a run, as versions `RUN@STEP` that an engine serves next to each other."""

    def __init__(self, folder: RunFolder, policy: Policy, engine: Engine, probe: Probe | None = None) -> None:
        """Create versions that `engine` samples. With a `probe`, each is checked before it is served."""
        self._folder, self._policy, self._engine, self._probe = folder, policy, engine, probe
        self._loaded: dict[str, Version] = {}

    @property
    def name(self) -> str:
        return self._folder.path.name

    async def load(self, text: str) -> Version:
        """Return the version of RUN@STEP or RUN@best, or the newest one of RUN.

        Raises UsageError for another run and for any other text after @, DataError if the checkpoint is missing or damaged,
        and ServiceError if the servers do not compute with its weights.
        """
        run, step = run_and_step(text)
        if run != self.name and Path(run) != self._folder.path:
            raise UsageError(f"{text[:80]!r} is not a version of {self.name}; write {self.name}@STEP.")
        if step is not None and step != BEST and not step.isdecimal():
            raise UsageError(f"{text[:80]!r} does not name a checkpoint; write a step after @, or {BEST}.")
        return await self.load_step(step)

    async def load_step(self, step: str | None) -> Version:
        """Return the version of a step, of the best checkpoint ("best"), or of the newest one (None). Raises the same
        errors as `load`."""
        checkpoint = await asyncio.to_thread(checkpoint_of, self._folder, step)
        number = checkpoint.name.lstrip("0") or "0" if checkpoint.name.isdigit() else checkpoint.name
        name = f"{self.name}@{number}"
        if name not in self._loaded:
            weights = await asyncio.to_thread(checkpoints.load_weights, checkpoint, self._policy)
            engine = await asyncio.to_thread(self._engine.freeze, weights)
            if self._probe is not None:
                await self._probe.check(name, engine, weights)
            self._loaded[name] = Version(name, engine)
        return self._loaded[name]
