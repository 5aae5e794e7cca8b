"""One played group, small enough to check by hand."""

from sparring.types import Outcome, Reward, Sampling, StopReason, Task, Trajectory, TrajectoryGroup, Turn

TASK = Task(id="t1", messages=({"role": "user", "content": "hi"},), fields={"answer": 4}, seed=9)

TURN = Turn(
    id=0,
    parent=None,
    branch_reason=None,
    prompt_ids=(1, 2, 3),
    token_ids=(4, 5),
    sampled_logprobs=(-0.5, -0.25),
    versions=((3, 1), (4, 1)),
    fingerprint="abc",
    stop_reason=StopReason.STOP,
    sampling=Sampling(temperature=0.5),
    message={"role": "assistant", "content": "4"},
    num_computed_tokens=5,
    seconds=0.01,
)

TRAJECTORY = Trajectory(
    id="train/0/t1/0.0",
    task=TASK,
    attempt=0,
    turns=(TURN,),
    messages=(*TASK.messages, TURN.message),
    outcome=Outcome.FINISHED,
    reward=Reward(total=1.0, components={"right": 1.0}),
    score=0.5,
    transitions=({"tool": "get", "result": "\ud800"}, {"tool": "put", "result": object}),
    seconds=0.02,
)

GROUP = TrajectoryGroup(task=TASK, trajectories=(TRAJECTORY,), num_lost=1)
