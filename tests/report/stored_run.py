"""Run folders for tests, written by what writes those of real runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparring.config import load_config
from sparring.evaluation.evaluation import Evaluation, Row, SuccessCriterion, summarize
from sparring.evaluation.independence import Independence
from sparring.evaluation.report import FORMAT, EvaluationReport, comparisons
from sparring.run_folders import RunFolder
from sparring.tracking import LocalTracker
from sparring.types import Json, Message, Outcome, Reward, Sampling, StopReason, Task, Trajectory, TrajectoryGroup, Turn

RECIPE = """
[model]
name = "model:build"
[environment]
target = "environment:Shop"
[data]
train = "environment:train_tasks"
[reward]
reward = "environment:reward"
scorer = "environment:scorer"
[schedule]
max_steps = 2
"""
VOCABULARY = ["the", " answer", " is", " 7", "<|end|>"]


def turn(place: int, message: Message, token_ids: Sequence[int] = (0, 1, 4)) -> Turn:
    return Turn(
        id=place,
        parent=place - 1 if place else None,
        branch_reason=None,
        prompt_ids=(1, 2),
        token_ids=tuple(token_ids),
        sampled_logprobs=tuple(-0.5 for _ in token_ids),
        versions=((1, len(token_ids)),),
        fingerprint="f",
        stop_reason=StopReason.STOP,
        sampling=Sampling(temperature=1.0, max_tokens=8),
        message=message,
        num_computed_tokens=5,
        seconds=0.1,
    )


def episode(
    trajectory_id: str,
    *,
    reward: float,
    score: float | None,
    text: str = "the answer is 7",
    outcome: Outcome = Outcome.FINISHED,
    messages: Sequence[Message] | None = None,
    fields: Mapping[str, Json] | None = None,
    per_turn: Mapping[int, float] | None = None,
) -> Trajectory:
    """One turn, or those of `messages`; the id contains split, place, task and member: `train/0/a/0.0`."""
    split, _, task_id, member = trajectory_id.rsplit("/", 3)
    task = Task(
        id=task_id, messages=({"role": "user", "content": f"{split} {task_id}?"},), fields=fields or {"truth": task_id}
    )
    whole = tuple(messages or (*task.messages, {"role": "assistant", "content": text}))
    spoken = [message for message in whole if message["role"] == "assistant"]
    return Trajectory(
        id=trajectory_id,
        task=task,
        attempt=int(member.split(".")[0]),
        turns=tuple(turn(place, message) for place, message in enumerate(spoken)),
        messages=whole,
        outcome=outcome,
        reward=Reward(total=reward, components={"correct": reward}, per_turn=per_turn),
        score=score,
    )


def groups(episodes: Sequence[Trajectory]) -> list[TrajectoryGroup]:
    by_task: dict[str, list[Trajectory]] = {}
    for one in episodes:
        by_task.setdefault(one.id.rpartition("/")[0], []).append(one)
    return [TrajectoryGroup(task=members[0].task, trajectories=tuple(members)) for members in by_task.values()]


def evaluation(
    name: str, episodes: Sequence[Trajectory], *, independence: Independence = "scorer", temperature: float | None = 0.0
) -> Evaluation:
    row = Row(
        name=name,
        label=f"{name}-{temperature or 0:g}",
        split="held_out",
        policy_version=2,
        fingerprint="f",
        temperature=temperature,
        group_size=1,
    )
    criterion = SuccessCriterion(
        scorer=None if independence == "none" else "environment:scorer",
        independence=independence,
        success_threshold=1.0,
    )
    return summarize(groups(episodes), row, criterion=criterion, seconds=1.0, prefix="eval", pass_k_values=(1,))


class StoredRun:
    """A run of two steps at `path`, to which a test adds what it is about."""

    def __init__(self, folder: Path, recipe: str = RECIPE, *, seed: int = 0, name: str = "stored") -> None:
        (folder / "recipe").mkdir(exist_ok=True)
        (folder / "recipe" / "recipe.toml").write_text(
            f'[run]\nseed = {seed}\nruns_dir = "{folder / "runs"}"\n{recipe}'
        )
        config = load_config(folder / "recipe" / "recipe.toml")
        self.folder = RunFolder.create(config, folder / "recipe" / "recipe.toml", name=name)
        self.path = self.folder.path
        self.folder.set_status("completed", step=2)
        self.folder.write_vocabulary(VOCABULARY)
        manifest = json.loads((self.path / "manifest.json").read_text())
        (self.path / "manifest.json").write_text(json.dumps({**manifest, "checked": [{"seconds": 1}]}))

    def log(
        self,
        metrics: Mapping[int, Mapping[str, float]] | None = None,
        played: Mapping[str, Sequence[Trajectory]] | None = None,
        findings: Sequence[Mapping[str, Json]] = (),
    ) -> None:
        """`played` by file: `train-1`."""
        tracker = LocalTracker(self.path)
        for step, numbers in (metrics or {}).items():
            tracker.log_metrics(step, numbers)
        for name, episodes in (played or {}).items():
            split, _, number = name.rpartition("-")
            tracker.log_groups(int(number), groups(episodes), split=split)
        for finding in findings:
            tracker.log_finding(finding)
        tracker.close()

    def validated(self, step: int, one: Evaluation) -> None:
        path = self.path / "evaluations" / f"validation-{step}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"format": FORMAT, **one.as_json()}))

    def evaluated(self, *rows: tuple[Evaluation, Sequence[Trajectory]]) -> None:
        """The last row is compared with the others."""
        evaluations = tuple(one for one, _ in rows)
        path = self.path / "evaluations" / "held_out-001.json"
        path.parent.mkdir(exist_ok=True)
        report = EvaluationReport(evaluations=evaluations, comparisons=comparisons(evaluations), path=path)
        report.write([group for _, played in rows for group in groups(played)])


def finding(
    rule: str = "reward.rises_alone", severity: str = "error", step: int | None = 2, **more: Json
) -> dict[str, Json]:
    return {
        "rule": rule,
        "severity": severity,
        "symptom": "the reward rises alone.",
        "evidence": {"steps": [1, 2]},
        "change": "Read the episodes.",
        "confirm": "Both rise.",
        "step": step,
        "trajectories": [],
        **more,
    }


def held_out(policy: str, scores: Sequence[float], *, rewards: Sequence[float] | None = None) -> list[Trajectory]:
    """An episode a task, `h0` and on."""
    return [
        episode(f"held_out/{policy}@1/h{place}/0.0", reward=reward, score=score)
        for place, (score, reward) in enumerate(zip(scores, rewards or scores, strict=True))
    ]
