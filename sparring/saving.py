"""The checkpoints of a training: copied at the end of a step, written while the next ones go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, final

from sparring.config import ScheduleSection
from sparring.errors import DiskError
from sparring.findings import Finding
from sparring.ledger import Ledger
from sparring.protocols import Learner, LearnerState
from sparring.rollouts import Curriculum, GroupPlan
from sparring.tracking import RunFolder
from sparring.training import checkpoints
from sparring.training.room import Room, checkpoint_bytes, free_bytes, num_to_come
from sparring.types import Json


@final
class Saver:
    """Saves one at a time. The ledger hears of a checkpoint when it is on the disk, and only then may older ones go.

    Used as `async with`: what is under way when the training ends, with an error too, is finished; one that is canceled does
    not wait for it.
    """

    def __init__(
        self,
        learner: Learner,
        ledger: Ledger,
        folder: RunFolder,
        *,
        schedule: ScheduleSection,
        say: Callable[[str], object],
    ) -> None:
        """`say` tells a person of a save that failed."""
        self._learner, self._ledger, self._folder = learner, ledger, folder
        self._schedule, self._say = schedule, say
        self._writing: asyncio.Task[None] | None = None
        self.newest: int | None = None
        """The step of the newest checkpoint on the disk; None without any of a step."""
        self.is_due = False
        """Whether a save failed and none has succeeded since."""
        self._is_short = False
        self._scores = folder.validation_scores()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writing is not None and kind is not None and issubclass(kind, asyncio.CancelledError):
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        else:
            await self.settled()

    def validated(self, step: int, score: float) -> None:
        """What the policy of a step was found to be worth: of the checkpoints, the best one stays."""
        self._scores[step] = score

    def room(self, step: int) -> Room:
        """What the disk has left for the checkpoints after a step; asked between two steps. Raises DiskError when it does not
        say."""
        schedule, there = self._schedule, self._folder.checkpoints
        num_steps = schedule.max_steps - step
        num_saves = -(-num_steps // schedule.save_every) if schedule.save_every else 1
        try:
            free, num_there = free_bytes(there), len(checkpoints.numbered(there))
        except OSError as error:
            raise DiskError(
                f"{there} cannot be read: {error}. Mend that disk, or keep the run elsewhere (run.runs_dir)."
            ) from error
        return Room(
            path=there,
            free_bytes=free,
            checkpoint_bytes=checkpoint_bytes(self._learner.export_weights()),
            num_to_come=num_to_come(keep=schedule.keep_checkpoints, num_saves=max(1, num_saves), num_there=num_there),
        )

    def shortage(self, step: int) -> Finding | None:
        """That room will be short, once until there is enough again. What cannot be read is for the next save to tell."""
        try:
            was_short, found = self._is_short, self.room(step).finding(step)
        except DiskError:
            return None
        self._is_short = found is not None
        return None if was_short else found

    async def begin(self, step: int, state: Mapping[str, Json]) -> None:
        """Copy what the learner is now, and write it from here on, after a save that is under way. What fails is told, and leaves
        `is_due`: a full disk may have room by the next step. Nobody changes `state` afterwards."""
        await self.settled()
        if self.newest == step:
            return
        try:
            copy = await asyncio.to_thread(self._copy, step)
        except DiskError as error:
            self._failed(error)
        else:
            self._writing = asyncio.create_task(self._tried(step, copy, state))

    async def save(self, step: int, state: Mapping[str, Json]) -> None:
        """The same, and on the disk when it returns. Raises DiskError when it cannot be written."""
        await self.settled()
        if self.newest != step:
            await asyncio.to_thread(self._write, step, await asyncio.to_thread(self._copy, step), state)

    async def settled(self) -> None:
        """Wait for the save under way."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def _tried(self, step: int, copy: LearnerState, state: Mapping[str, Json]) -> None:
        try:
            await asyncio.to_thread(self._write, step, copy, state)
        except DiskError as error:
            self._failed(error)
        else:
            self.is_due = False

    def _failed(self, error: DiskError) -> None:
        self.is_due = True
        self._say(f"{error} The run goes on, and tries again after the next step.")

    def _copy(self, step: int) -> LearnerState:
        # Between two steps, as everything that asks the learner: it is trained on while a checkpoint is written.
        self.room(step).check()
        return self._learner.export_state()

    def _write(self, step: int, copy: LearnerState, state: Mapping[str, Json]) -> None:
        save_announced(self._ledger, self._folder.checkpoints, step, step, copy, state)
        self.newest = step
        # What cannot be deleted now goes with the next one.
        with suppress(OSError):
            pinned = checkpoints.best(self._folder.checkpoints, dict(self._scores))
            checkpoints.prune(self._folder.checkpoints, step, keep=self._schedule.keep_checkpoints, pinned=pinned)


def save_announced(
    ledger: Ledger, directory: Path, step: int, name: int | str, copy: LearnerState, state: Mapping[str, Json]
) -> None:
    """Write the checkpoint of a step that the ledger knows before it has its name. Raises as `checkpoints.save`."""
    digests: list[str] = []

    def announce(named: str, digest: str) -> None:
        # Waiting for it also means that a checkpoint never holds what the ledger might still lose.
        ledger.announce_nowait(step, named, digest).result()
        digests.append(digest)

    saved = checkpoints.save(directory, name, copy, state, announce=announce)
    ledger.publish_nowait(step, saved.name, digests[0]).result()


def training_state(step: int, curriculum: Curriculum, outstanding: Sequence[GroupPlan] = ()) -> dict[str, Json]:
    """What a checkpoint keeps besides the learner."""
    return {
        "step": step, "curriculum": curriculum.state(),
        "outstanding": [[plan.position, plan.task.id] for plan in outstanding],
    }  # fmt: skip
