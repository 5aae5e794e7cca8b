"""The checkpoints of a training: copied at the end of a step, written while the next ones go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Self, final

from sparring.errors import DataError
from sparring.ledger import Ledger
from sparring.protocols import Learner, LearnerState
from sparring.rollouts import Curriculum, GroupPlan
from sparring.tracking import RunFolder
from sparring.training import checkpoints
from sparring.types import Json


@final
class Saver:
    """Saves one at a time. The ledger hears of a checkpoint when it is on the disk, and only then may older ones go.

    Used as `async with`: what is under way when the training ends, with an error too, is finished; one that is canceled does
    not wait for it.
    """

    def __init__(
        self, learner: Learner, ledger: Ledger, folder: RunFolder, *, keep: int, say: Callable[[str], object]
    ) -> None:
        """`keep` numbered checkpoints stay; `say` tells a person of a save that failed."""
        self._learner, self._ledger, self._folder = learner, ledger, folder
        self._keep, self._say = keep, say
        self._writing: asyncio.Task[None] | None = None
        self.newest: int | None = None
        """The step of the newest checkpoint on the disk; None without any of a step."""
        self.is_due = False
        """Whether a save failed and none has succeeded since."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writing is not None and kind is not None and issubclass(kind, asyncio.CancelledError):
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        else:
            await self.settled()

    async def begin(self, step: int, state: Mapping[str, Json]) -> None:
        """Copy what the learner is now, and write it from here on, after a save that is under way. What fails is told, and leaves
        `is_due`: a full disk may have room by the next step. Nobody changes `state` afterwards."""
        await self.settled()
        if self.newest != step:
            copy = await asyncio.to_thread(self._learner.export_state)
            self._writing = asyncio.create_task(self._tried(step, copy, state))

    async def save(self, step: int, state: Mapping[str, Json]) -> None:
        """The same, and on the disk when it returns. Raises DataError when it cannot be written."""
        await self.settled()
        if self.newest != step:
            await asyncio.to_thread(self._write, step, await asyncio.to_thread(self._learner.export_state), state)

    async def settled(self) -> None:
        """Wait for the save under way."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def _tried(self, step: int, copy: LearnerState, state: Mapping[str, Json]) -> None:
        try:
            await asyncio.to_thread(self._write, step, copy, state)
        except DataError as error:
            self.is_due = True
            self._say(f"{error} The run goes on, and tries again after the next step.")
        else:
            self.is_due = False

    def _write(self, step: int, copy: LearnerState, state: Mapping[str, Json]) -> None:
        # A checkpoint never holds what the ledger might still lose.
        self._ledger.flush()
        saved = checkpoints.save(self._folder.checkpoints, step, copy, state)
        self.newest = step
        self._ledger.publish_nowait(step, saved.name).result()
        checkpoints.prune(self._folder.checkpoints, step, keep=self._keep)


def training_state(step: int, curriculum: Curriculum, outstanding: Sequence[GroupPlan] = ()) -> dict[str, Json]:
    """What a checkpoint keeps besides the learner."""
    return {
        "step": step, "curriculum": curriculum.state(),
        "outstanding": [[plan.position, plan.task.id] for plan in outstanding],
    }  # fmt: skip
