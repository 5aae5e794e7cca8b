"""Define how training reacts to an error that a detector finds. `detectors.reaction` selects the reaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sparring.assembly import TrainingParts
from sparring.errors import GateError
from sparring.findings import Finding
from sparring.run_folders import RunFolder
from sparring.tracking import Console
from sparring.training import checkpoints

PAUSE_SECONDS = 0.5
"""The interval at which a paused run checks whether it may continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """An error that a detector found after a step, with the objects that a reaction acts on."""

    finding: Finding
    step: int
    first_step: int
    """The step after which the finding's rule was first reported, possibly as a warning."""
    parts: TrainingParts
    folder: RunFolder
    console: Console
    stop: asyncio.Event
    save: Callable[[], Awaitable[None]]
    """Saves a checkpoint of the step."""

    @property
    def summary(self) -> str:
        return f"{self.finding.rule} after step {self.step}: {self.finding.symptom}"


Reaction: TypeAlias = Callable[[Incident], Awaitable[None]]
"""A function that returns if the run continues, and raises GateError if the run ends."""


async def report(incident: Incident) -> None:
    """Continue the run. The finding is already logged."""


async def pause(incident: Incident) -> None:
    """Wait until the file `pause` is deleted or a stop of the run is requested."""
    folder = incident.folder
    folder.pause.touch()
    folder.set_status("paused", step=incident.step, reason=incident.summary)
    incident.console.announced(f"paused: {incident.summary} Delete {folder.pause} to continue, or stop the run.")
    while folder.pause.exists() and not incident.stop.is_set():
        if folder.stop_requested():
            incident.stop.set()
        await asyncio.sleep(PAUSE_SECONDS)
    folder.pause.unlink(missing_ok=True)
    folder.set_status("running", step=incident.step)


async def stop(incident: Incident) -> None:
    """End the run with a checkpoint of the step."""
    await incident.save()
    raise GateError(
        f"{incident.summary} detectors.reaction = 'stop' ended the run with a checkpoint of this step. "
        f"{incident.finding.change} To continue anyway, run `sparring train --resume` with detectors.reaction=report."
    )


async def roll_back(incident: Incident) -> None:
    """End the run at the newest checkpoint from before the rule was first reported, and move later checkpoints away."""
    parts, folder = incident.parts, incident.folder
    aside = checkpoints.set_aside(folder.checkpoints, folder.path / "set_aside", since=incident.first_step)
    healthy = checkpoints.find_newest(folder.checkpoints) if checkpoints.has_checkpoint(folder.checkpoints) else None
    step, name = 0, ""
    if healthy is not None:
        step, name = int(checkpoints.load(healthy, parts.learner)["step"]), healthy.name
    await asyncio.wrap_future(parts.ledger.rewind_nowait(step, name, detail=incident.summary))
    left = f"the newest checkpoint is {healthy.name} again" if healthy else "there was no checkpoint from before"
    moved = f"; {', '.join(path.name for path in aside)} moved to {aside[0].parent}" if aside else ""
    raise GateError(
        f"{incident.summary} detectors.reaction = 'roll_back' ended the run: {left}{moved}. {incident.finding.change} Then "
        "start a new run from these weights."
    )


REACTIONS: Mapping[str, Reaction] = {"report": report, "pause": pause, "stop": stop, "roll_back": roll_back}
