"""An evaluation in progress. Finished episodes are stored immediately, so that an interrupted evaluation can continue.

    evaluations/held_out-003.part/
        job.json        the plan: overrides, policies, temperatures, a digest of the tasks, the start times
        episodes.jsonl  one finished episode per line: {"label", "trajectory", "transitions"}
        lock            locked by the process that runs the evaluation

When all episodes are finished, the result is written to evaluations/held_out-003.json and
trajectories/held_out-3.jsonl, and the folder is deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self, final

from sparring.errors import DataError, UsageError
from sparring.evaluation.policies import Policy, PolicyKind
from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.ledger.states import FINAL_STATES
from sparring.run_folders import RunFolder
from sparring.run_folders.encode import encode_line
from sparring.run_folders.formats import require_format
from sparring.run_folders.run_folder import UNFINISHED
from sparring.run_folders.stored import parse_trajectory, read_rows
from sparring.tracking.local import task_json, trajectory_json
from sparring.types import Task, Trajectory

FORMAT = 1
SPLIT = "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of an evaluation, which allows another process to continue it."""

    overrides: tuple[str, ...]
    policies: tuple[Policy, ...]
    temperatures: tuple[float, ...] | None
    """The sampling temperatures. None means greedy and the recipe's sampling temperature."""
    api_key_env: str | None
    tasks: str = ""
    """The digest of the tasks. Empty until they are loaded."""
    fingerprints: Mapping[str, str] | None = None
    """The fingerprints of the policies that have started, keyed by policy name."""
    starts: tuple[str, ...] = ()
    """The start identifiers of this evaluation's rollouts in the ledger, one for each time it was started."""

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        return {
            "format": FORMAT,
            "overrides": list(self.overrides),
            "policies": [one.as_json() for one in self.policies],
            "temperatures": self.temperatures,
            "api_key_env": self.api_key_env,
            "tasks": self.tasks,
            "fingerprints": dict(self.fingerprints or {}),
            "starts": list(self.starts),
        }

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a plan from its file. Raises DataError if the file is not a plan."""
        try:
            content = json.loads(path.read_text("utf-8"))
            require_format(path, content["format"], FORMAT, otherwise="start a new evaluation")
            policies = [Policy(**{**one, "kind": PolicyKind(one["kind"])}) for one in content["policies"]]
            temperatures = content["temperatures"]
            return cls(
                overrides=tuple(content["overrides"]),
                policies=tuple(policies),
                temperatures=None if temperatures is None else tuple(temperatures),
                api_key_env=content["api_key_env"],
                tasks=content["tasks"],
                fingerprints=content["fingerprints"],
                starts=tuple(content["starts"]),
            )
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path} does not state what to evaluate ({error!r}); delete its folder.") from error


@final
class Job:
    """The folder of one evaluation, locked by this process until `close`."""

    def __init__(self, folder: Path, plan: Plan, lock: IO[str]) -> None:
        """Use `new` or `interrupted` instead of the constructor."""
        self.folder, self.plan, self._lock = folder, plan, lock
        self.start = str(time.time_ns())
        """The identifier that distinguishes rollouts of this process from those of earlier processes."""
        self.episodes: dict[str, dict[str, dict[int, Trajectory]]] = {}
        """The episodes that earlier processes finished, by label, task and member."""
        self._file: IO[bytes] | None = None

    @classmethod
    def new(cls, run: RunFolder, plan: Plan) -> Self:
        """Create the folder of a new evaluation and lock it."""
        while True:
            folder = run.next_evaluation_path().with_suffix(UNFINISHED)
            try:
                folder.mkdir()
            except FileExistsError:
                continue  # another process has created this folder
            job = cls(folder, plan, _held(folder))
            job._write(plan)
            return job

    @classmethod
    def interrupted(cls, run: RunFolder) -> Self:
        """Open the newest unfinished evaluation. Raises UsageError if there is none, or if another process runs it."""
        plans = run.evaluations.glob(f"{SPLIT}-*{UNFINISHED}/job.json")
        folders = sorted((plan.parent for plan in plans), key=lambda folder: (len(folder.name), folder.name))
        if not folders:
            raise UsageError(f"{run.path} has no interrupted evaluation; omit --resume.")
        folder = folders[-1]
        lock = _held(folder)
        try:
            return cls(folder, Plan.read(folder / "job.json"), lock)
        except DataError:
            lock.close()
            raise

    @property
    def path(self) -> Path:
        """The path of the finished report."""
        return self.folder.with_suffix(".json")

    @property
    def num_kept(self) -> int:
        """The number of episodes that earlier processes finished."""
        return sum(len(members) for tasks in self.episodes.values() for members in tasks.values())

    def begin(self, tasks: Sequence[Task], ledger: Ledger) -> None:
        """Load the episodes that earlier processes finished, and record in the ledger which episodes were interrupted.

        Raises DataError if the tasks have changed.
        """
        digest = hashlib.sha256(b"".join(encode_line(task_json(task)) for task in tasks)).hexdigest()
        if self.plan.tasks not in ("", digest):
            raise DataError(
                f"{self.folder} was started with tasks that differ from the run's current held-out tasks; restore the data, "
                f"or delete {self.folder} and start a new evaluation."
            )
        known = self._read()
        for trajectory, label in known:
            self.episodes.setdefault(label, {}).setdefault(trajectory.task.id, {})[trajectory.attempt] = trajectory
        _settle(ledger, set(self.plan.starts), {trajectory.id for trajectory, _ in known})
        self._write(replace(self.plan, tasks=digest, starts=(*self.plan.starts, self.start)))
        self._file = (self.folder / "episodes.jsonl").open("ab")

    def moved(self, name: str, checkpoint: Path) -> None:
        """Record that a policy, which has no episodes so far, now comes from a different checkpoint than planned."""
        policies = (replace(one, source=str(checkpoint)) if one.name == name else one for one in self.plan.policies)
        self._write(replace(self.plan, policies=tuple(policies)))

    def plays(self, name: str, fingerprint: str) -> None:
        """Record that a policy starts. Raises DataError if a policy with this name previously had a different
        fingerprint."""
        known = dict(self.plan.fingerprints or {})
        if known.setdefault(name, fingerprint) != fingerprint:
            raise DataError(
                f"{name!r} is {fingerprint}, but {self.folder} was started with {known[name]}; delete {self.folder} "
                "and start a new evaluation."
            )
        self._write(replace(self.plan, fingerprints=known))

    def keep(self, label: str) -> Callable[[Trajectory], None]:
        """Return a function that stores a finished episode under this label.

        When that function returns, the operating system has the data, so the episode is not lost if the process is
        killed.
        """

        def write(trajectory: Trajectory) -> None:
            assert self._file is not None
            line = {"label": label, "trajectory": trajectory_json(trajectory), "transitions": trajectory.transitions}
            self._file.write(encode_line(line))
            self._file.flush()

        return write

    def over(self) -> None:
        """Delete the folder after the report is written."""
        shutil.rmtree(self.folder)
        self.close()

    def close(self) -> None:
        """Release the folder. Delete the folder if it contains no episodes."""
        file = self.folder / "episodes.jsonl"
        if self._file is not None:
            self._file.close()
        if not file.exists() or not file.stat().st_size:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def _read(self) -> list[tuple[Trajectory, str]]:
        file = self.folder / "episodes.jsonl"
        if not file.exists():
            return []
        # A process that was killed may have written an incomplete line.
        content = file.read_bytes()
        if not content.endswith(b"\n"):
            file.write_bytes(content[: content.rfind(b"\n") + 1])
        try:
            return [
                (parse_trajectory(row["trajectory"], row["transitions"], where), row["label"])
                for where, row in read_rows(file)
            ]
        except LookupError as error:
            raise DataError(
                f"{file} is damaged: it lacks {error}; delete its folder and start a new evaluation."
            ) from error

    def _write(self, plan: Plan) -> None:
        self.plan = plan
        temporary = self.folder / ".job.json"
        temporary.write_text(json.dumps(plan.as_json(), indent=1) + "\n", "utf-8")
        temporary.replace(self.folder / "job.json")


def _held(folder: Path) -> IO[str]:
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UsageError(
            f"another process is running the evaluation in {folder}; wait until it has finished."
        ) from error
    return lock


def _settle(ledger: Ledger, starts: set[str], kept: set[str]) -> None:
    """Update the ledger from the stored episodes, which are written before the ledger."""
    path = (
        RolloutState.LEASED,
        RolloutState.RUNNING,
        RolloutState.FINISHED,
        RolloutState.SCORED,
        RolloutState.EVALUATED,
    )
    for rollout in ledger.rollouts(split=SPLIT) if starts else ():
        if rollout.state in FINAL_STATES or rollout.id.split("/")[1].rpartition("@")[2] not in starts:
            continue
        if rollout.id in kept:
            begun = 0 if rollout.state is RolloutState.PLANNED else path.index(rollout.state) + 1
            for state in path[begun:]:
                ledger.advance_nowait(rollout.id, state)
        else:
            detail = "the evaluation was interrupted"
            ledger.advance_nowait(rollout.id, RolloutState.DISCARDED, reason=DiscardReason.REWOUND, detail=detail)
