"""The digests of episodes give the same as the episodes, and are not used where they could be wrong."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import DataError
from sparring.run_folders import digests
from sparring.run_folders.digests import Outline, content_hash, read_digests, read_history, read_outline, tags_of
from sparring.run_folders.history import Digest, History, read_steps
from sparring.run_folders.stored import read_placed_trajectories
from sparring.tracking import LocalTracker
from sparring.types import Outcome, Reward, Task, Trajectory, Usage
from tests.report.stored_run import episode, groups


def played(step: int = 1, reward: float = 1.0) -> list[Trajectory]:
    """Episodes with values that JSON changes or cannot represent, and episodes that lack something."""
    call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": '{"key": 1}'}}
    messages = [
        {"role": "user", "content": "go \ud800 é"},
        {"role": "assistant", "content": "<b>hm</b>", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "none"},
        {"role": "assistant", "content": [{"type": "text", "text": "<answer>7</answer><b>"}]},
    ]
    tools = episode(f"train/{step}/a/0.0", reward=reward, score=0.0, messages=messages, per_turn={0: 0.5, 1: 0.5})
    strange = Reward(total=float("nan"), components={"a": float("nan"), "b": 1}, record={"judge": {}})
    state = {"large": 10**30, "list": [1.5, None], "nan": float("inf")}
    odd = replace(tools, id=f"train/{step}/a/1.0", reward=strange, score=float("nan"), final_state=state)
    lost = replace(tools, id=f"train/{step}/a/2.0", reward=None, score=None, outcome=Outcome.POLICY_TIMEOUT)
    usage = Usage(num_prompt_tokens=3, num_sampled_tokens=4)
    foreign = [replace(one, prompt_ids=(), token_ids=(), sampled_logprobs=(), usage=usage) for one in tools.turns]
    other = replace(tools, task=replace(tools.task, id="b"))
    counted = replace(other, id=f"train/{step}/b/0.0", turns=tuple(foreign), score_parts={"format": 0.5})
    silent = replace(other, id=f"train/{step}/b/1.0", turns=(), messages=())
    greedy = [replace(one, sampling=replace(one.sampling, temperature=0.0), versions=()) for one in tools.turns]
    two = replace(other, id=f"train/{step}/b/2.0", turns=tuple(greedy), other_turns=(replace(greedy[0], learns=False),))
    return [tools, odd, lost, counted, silent, two]


def write(run: Path, step: int, episodes: list[Trajectory]) -> Path:
    tracker = LocalTracker(run)
    tracker.log_metrics(step, {"x": float(step)})
    tracker.log_groups(step, groups(episodes), split="train")
    tracker.close()
    return run / "trajectories" / f"train-{step}.jsonl"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose episodes were read."""
    names: list[str] = []

    def read(file: Path) -> Any:
        names.append(file.name)
        return read_placed_trajectories(file)

    monkeypatch.setattr(digests, "read_placed_trajectories", read)
    return names


def test_digests_that_training_writes_are_those_of_the_stored_episodes(tmp_path: Path, reads: list[str]) -> None:
    file = write(tmp_path, 1, played())
    found: list[tuple[Outline, tuple[Digest, ...]]] = [(read_outline(file), read_digests(file))]
    assert reads == []
    written = digests._path(file)
    content = written.read_bytes()
    written.unlink()
    found.append((read_outline(file), read_digests(file)))
    assert reads == ["train-1.jsonl"]
    assert written.read_bytes() == content
    assert repr(found[0]) == repr(found[1])  # NaN is not equal to itself
    # The history is that of the episodes.
    history = History()
    for step, metrics, train, validation in read_steps(tmp_path):
        history.add(step, metrics=metrics, train=train, validation=validation)
    assert repr(read_history(tmp_path).steps) == repr(history.steps)


def test_an_outline_places_episodes_and_keeps_their_rewards_by_turn(tmp_path: Path) -> None:
    file = write(tmp_path, 1, played())
    outline = read_outline(file)
    lines = file.read_bytes().split(b"\n")
    assert [json.loads(file.read_bytes()[one.offset :][: one.num_bytes]) for one in outline.episodes] == [
        json.loads(line) for line in lines[:-1]
    ]
    first, odd, lost, counted, silent, greedy = outline.episodes
    assert first.rewarded is not None
    assert (first.rewarded.turn_rewards, first.rewarded.turn_tokens) == (
        (0.5, 0.5),
        (3, 3),
    )
    assert tags_of(first.trajectory.messages[-1]) == ["answer", "b"]
    assert odd.trajectory.reward is not None
    assert dict(odd.trajectory.reward.components) == {"a": None, "b": 1}
    assert (lost.trajectory.outcome, lost.rewarded) == (Outcome.POLICY_TIMEOUT, None)
    assert counted.rewarded is not None
    assert counted.rewarded.turn_tokens == (0, 0)
    assert (silent.trajectory.messages, silent.version, first.version, greedy.version) == ((), None, 1, None)
    assert set(outline.tasks) == {"a", "b"}


def _header(**changes: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        first, _, rest = path.read_bytes().partition(b"\n")
        path.write_bytes(json.dumps({**json.loads(first), **changes}).encode() + b"\n" + rest)

    return change


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "truncated in the first line": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "another value": lambda path: path.write_bytes(path.read_bytes().replace(b"finished", b"finishes")),
    "not JSON": lambda path: path.write_bytes(b"\xff" * 100),
    "a list": lambda path: path.write_bytes(b"[]\n"),
    "another format": _header(format=digests.FORMAT + 1),
    "another version": _header(sparring="0.0.0"),
    "of another file": _header(episodes=[1, 1]),
    "without sizes": _header(sizes=None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_or_one_of_another_version_is_written_again(
    tmp_path: Path, reads: list[str], damage: str
) -> None:
    file = write(tmp_path, 1, played())
    path = digests._path(file)
    content, expected = path.read_bytes(), repr((read_outline(file), read_digests(file)))
    for read in (read_outline, read_digests):
        DAMAGES[damage](path)
        reads.clear()
        read(file)
        assert reads == ["train-1.jsonl"]
        assert path.read_bytes() == content
    assert repr((read_outline(file), read_digests(file))) == expected
    assert len(reads) == 1


def test_digests_that_are_older_than_the_episodes_are_not_used(tmp_path: Path, reads: list[str]) -> None:
    file = write(tmp_path, 1, played())
    old = digests._path(file).read_bytes()
    write(tmp_path, 1, played(reward=0.5))
    digests._path(file).write_bytes(old)
    assert read_digests(file)[0].reward == 0.5
    assert read_outline(file).episodes[0].trajectory.reward == Reward(total=0.5, components={"correct": 0.5})
    assert reads == ["train-1.jsonl"]


def test_episodes_are_read_where_no_digests_can_be_written(tmp_path: Path) -> None:
    file = write(tmp_path, 1, played())
    expected = repr(read_outline(file))
    digests._path(file).unlink()
    digests._path(file).parent.rmdir()
    digests._path(file).parent.write_text("a file instead of the folder")
    assert repr(read_outline(file)) == expected
    file.write_bytes(b"x" + file.read_bytes()[1:])
    with pytest.raises(DataError, match="line 1"):
        read_outline(file)


def test_tasks_with_equal_content_have_equal_hashes() -> None:
    one = Task(id="a", messages=({"role": "user", "content": "é"},), fields={"x": 1, "y": 2})
    assert content_hash(one) == content_hash(replace(one, id="b", fields={"y": 2, "x": 1}))
    assert content_hash(one) != content_hash(replace(one, fields={"x": 1, "y": 3}))
