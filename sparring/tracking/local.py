"""Write the files of a run: metrics, trajectories, the environments' logs and findings.

    metrics.jsonl                     {"step", "time", "metrics": {name: number}}
    trajectories/<split>-<step>.jsonl one episode per line: messages, turns token for token, reward, score, outcome
    digests/<split>-<step>.jsonl      what reports need of the same episodes
    environment/<split>-<step>.jsonl  one tool call per line: {"trajectory_id", "task_id", "index", "transition"}
    findings.jsonl                    one finding per line

A resumed run writes again the steps that it repeats. A line of metrics.jsonl with `training/resumed` invalidates all
earlier lines for later steps, and the files of a repeated step are replaced.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from sparring.run_folders.digests import DigestWriter
from sparring.run_folders.encode import encode, encode_line
from sparring.run_folders.stored import TRAJECTORY_FORMAT
from sparring.runtime.redaction import mask_secrets
from sparring.tracking.worker import TrackingThread
from sparring.types import Json, Reward, Task, Trajectory, TrajectoryGroup, Turn

_CAPACITY = 64
"""Number of entries that may wait for the disk. A step writes about three."""


@final
class LocalTracker:
    """Writes to a run folder on its own thread. `close` waits until everything is on disk."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        for name in ("metrics.jsonl", "findings.jsonl"):
            _drop_torn_line(path / name)
        self._worker = TrackingThread("local files", capacity=_CAPACITY)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        entry = {"step": step, "time": self._clock(), "metrics": dict(metrics)}
        self._worker.submit(lambda: _append(self._path / "metrics.jsonl", encode_line(entry)))

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        name = f"{split}-{step}.jsonl"

        def write() -> None:
            # The environment's log comes first, for readers that open the episodes as soon as they exist.
            log = (encode_line(entry) for t in trajectories for entry in _transitions(t))
            _replace(self._path / "environment" / name, log)
            digests, path = DigestWriter(), self._path / "trajectories" / name
            _replace(path, (digests.add(trajectory_json(t)) for t in trajectories))
            digests.write(path)

        self._worker.submit(write)

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        entry = {"time": self._clock(), **finding}
        line = mask_secrets(encode_line(entry).decode("utf-8")).encode("utf-8")
        self._worker.submit(lambda: _append(self._path / "findings.jsonl", line))

    def log_artifact(self, name: str, content: Json) -> None:
        """Write an artifact. Raises ValueError for a name that points outside the run folder."""
        target = artifact_path(self._path, name)

        def write() -> None:
            for parent in list(target.relative_to(self._path.resolve()).parents)[-2::-1]:
                (self._path / parent).mkdir(exist_ok=True)
            # Readers see the whole file or nothing.
            temporary = target.with_name(f".{target.name}.tmp")
            temporary.write_bytes(encode(content, indent=True) + b"\n")
            temporary.replace(target)

        self._worker.submit(write)

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        """Do nothing: `RunFolder.set_status` stores it."""

    def close(self) -> None:
        self._worker.close()


def artifact_path(folder: Path, name: str) -> Path:
    """Return the path of an artifact. Raises ValueError for a name that is absolute or points outside the folder."""
    target = (folder / name).resolve()
    if not target.is_relative_to(folder.resolve()) or target == folder.resolve():
        raise ValueError(
            f"artifact name {name!r} points outside the run folder; give a path relative to the run folder."
        )
    return target


def trajectory_json(trajectory: Trajectory) -> dict[str, Any]:
    """Return the form in which an episode is stored: its messages, sampled tokens, reward and score. Includes the
    task's fields."""
    return {
        "format": TRAJECTORY_FORMAT,
        "id": trajectory.id,
        "task": task_json(trajectory.task),
        "attempt": trajectory.attempt,
        "outcome": trajectory.outcome,
        "error": trajectory.error,
        "began": trajectory.began,
        "seconds": trajectory.seconds,
        "messages": trajectory.messages,
        "turns": [_turn_json(turn) for turn in trajectory.turns],
        **({"other_turns": [_turn_json(turn) for turn in trajectory.other_turns]} if trajectory.other_turns else {}),
        "reward": None if trajectory.reward is None else _reward_json(trajectory.reward),
        "score": trajectory.score,
        "score_parts": trajectory.score_parts,
        "metrics": trajectory.metrics,
        **({} if trajectory.final_state is None else {"final_state": trajectory.final_state}),
        **({"artifacts": trajectory.artifacts} if trajectory.artifacts else {}),
    }


def task_json(task: Task) -> dict[str, Any]:
    """Return the form in which a task is stored, including the ground truth."""
    return {"id": task.id, "messages": task.messages, "fields": task.fields, "seed": task.seed}


def _turn_json(turn: Turn) -> dict[str, Any]:
    return {
        "id": turn.id,
        "parent": turn.parent,
        "branch_reason": turn.branch_reason,
        "prompt_ids": turn.prompt_ids,
        "token_ids": turn.token_ids,
        "sampled_logprobs": turn.sampled_logprobs,
        "versions": turn.versions,
        "fingerprint": turn.fingerprint,
        "stop_reason": turn.stop_reason,
        "temperature": turn.sampling.temperature,
        "top_p": turn.sampling.top_p,
        "removed_mass": turn.removed_mass,
        "untrained_reason": turn.untrained_reason,
        "max_tokens": turn.sampling.max_tokens,
        "message": turn.message,
        "num_computed_tokens": turn.num_computed_tokens,
        "usage": None if turn.usage is None else dataclasses.asdict(turn.usage),
        "began": turn.began,
        "seconds": turn.seconds,
        **({} if turn.policy is None else {"policy": turn.policy}),
    }


def _reward_json(reward: Reward) -> dict[str, Any]:
    return {
        "total": reward.total,
        "per_turn": reward.per_turn,
        "components": reward.components,
        "metrics": reward.metrics,
        **({"record": reward.record} if reward.record else {}),
    }


def _transitions(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    for index, transition in enumerate(trajectory.transitions):
        yield {
            "trajectory_id": trajectory.id,
            "task_id": trajectory.task.id,
            "index": index,
            "transition": transition,
        }


def _append(path: Path, line: bytes) -> None:
    # The file is opened again for each line, so that written lines survive a crash of the process.
    with path.open("ab") as file:
        file.write(line)


def _replace(path: Path, lines: Iterator[bytes]) -> None:
    path.parent.mkdir(exist_ok=True)  # never the run folder, which may be gone
    # The file is renamed when it is complete, so that readers never see part of it.
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.writelines(lines)
    temporary.replace(path)


def _drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line that was left by a killed process. Appending to it would produce an invalid
    line."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])
