"""Write the checkpoints of a run. Each checkpoint is copied at the end of a step and written while the next steps
run."""

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
from sparring.run_folders import RunFolder
from sparring.training import checkpoints
from sparring.training.disk_space import Room, count_remaining, estimate_checkpoint_bytes, measure_free_bytes
from sparring.types import Json


@final
class Saver:
    """Saves one checkpoint at a time.

    A checkpoint is recorded in the ledger when it is on the disk. Older checkpoints are deleted only after that. Use
    the saver with `async with`: when training ends, even with an error, a save in progress is finished. If training is
    cancelled, it does not wait for the save.
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
        """Prepare a saver. `say` shows the user that a save failed."""
        self._learner, self._ledger, self._folder = learner, ledger, folder
        self._schedule, self._say = schedule, say
        self._writing: asyncio.Task[None] | None = None
        self.newest: int | None = None
        """The step of the newest checkpoint on the disk; None before the first."""
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
        """Record the validation score of a step. The checkpoint with the best score is never deleted."""
        self._scores[step] = score

    def room(self, step: int) -> Room:
        """Return the free disk space and the space that the checkpoints after a step need. Call this method between two
        steps.

        Raises DiskError if the disk cannot be read.
        """
        schedule, there = self._schedule, self._folder.checkpoints
        num_steps = schedule.max_steps - step
        num_saves = -(-num_steps // schedule.save_every) if schedule.save_every else 1
        try:
            free, num_there = measure_free_bytes(there), len(checkpoints.list_numbered(there))
        except OSError as error:
            raise DiskError(
                f"{there} cannot be read: {error}. Fix the disk, or store the run elsewhere (run.runs_dir)."
            ) from error
        return Room(
            path=there,
            free_bytes=free,
            checkpoint_bytes=estimate_checkpoint_bytes(self._learner.export_weights()),
            num_to_come=count_remaining(
                keep=schedule.keep_checkpoints, num_saves=max(1, num_saves), num_there=num_there
            ),
        )

    def shortage(self, step: int) -> Finding | None:
        """Return a finding if there will not be enough disk space.

        The finding is not returned again until there has been enough space in between. If the disk cannot be read, the
        next save reports it.
        """
        try:
            was_short, found = self._is_short, self.room(step).finding(step)
        except DiskError:
            return None
        self._is_short = found is not None
        return None if was_short else found

    async def begin(self, step: int, state: Mapping[str, Json]) -> None:
        """Copy the learner's state now, and write it in the background after any save that is in progress.

        A failure is shown and sets `is_due`. The next step then tries again, because a full disk may have free space by
        then. The caller must not change `state` afterwards.
        """
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
        """Save a checkpoint and return when it is on the disk. Raises DiskError if it cannot be written."""
        await self.settled()
        if self.newest != step:
            await asyncio.to_thread(self._write, step, await asyncio.to_thread(self._copy, step), state)

    async def settled(self) -> None:
        """Wait for the save that is in progress."""
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
        self._say(f"{error} The run continues and tries again after the next step.")

    def _copy(self, step: int) -> LearnerState:
        # The learner may only be used between two steps: it continues to train while a checkpoint is written.
        self.room(step).check()
        return self._learner.export_state()

    def _write(self, step: int, copy: LearnerState, state: Mapping[str, Json]) -> None:
        save_announced(self._ledger, self._folder.checkpoints, step, step, copy, state)
        self.newest = step
        # Checkpoints that cannot be deleted now are deleted after the next save.
        with suppress(OSError):
            pinned = checkpoints.find_best(self._folder.checkpoints, dict(self._scores))
            checkpoints.prune(self._folder.checkpoints, step, keep=self._schedule.keep_checkpoints, pinned=pinned)


def save_announced(
    ledger: Ledger, directory: Path, step: int, name: int | str, copy: LearnerState, state: Mapping[str, Json]
) -> None:
    """Write the checkpoint of a step. The ledger records the checkpoint before it gets its final name.

    Raises the same errors as `checkpoints.save`.
    """
    digests: list[str] = []

    def announce(named: str, digest: str) -> None:
        # Wait, so that a checkpoint never contains a step that the ledger might still lose.
        ledger.announce_nowait(step, named, digest).result()
        digests.append(digest)

    saved = checkpoints.save(directory, name, copy, state, announce=announce)
    ledger.publish_nowait(step, saved.name, digests[0]).result()


def training_state(step: int, curriculum: Curriculum, outstanding: Sequence[GroupPlan] = ()) -> dict[str, Json]:
    """Return the state that a checkpoint contains in addition to the learner's state."""
    return {
        "step": step,
        "curriculum": curriculum.state(),
        "outstanding": [[plan.position, plan.task.id] for plan in outstanding],
    }
