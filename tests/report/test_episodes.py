"""Which episodes a page has, in which order, and what it shows of each."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sparring.report import write_report
from sparring.report.episode_index import EpisodeIndex
from sparring.report.episodes import Episodes, episodes
from sparring.report.reading import read_run
from sparring.run_folders import digests
from sparring.types import Outcome
from tests.report.stored_run import RECIPE, StoredRun, episode, evaluation, held_out


def shown(run: StoredRun, **limits: int) -> Episodes:
    return episodes(read_run(run.path), **limits)


def test_disagreements_come_first_then_failures_then_right_ones_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    right = [episode(f"train/0/a/{place}.0", reward=1.0, score=1.0) for place in range(6)]
    wrong = [episode(f"train/1/b/{place}.0", reward=0.0, score=0.0) for place in range(2)]
    unfinished = episode("train/2/c/0.0", reward=1.0, score=1.0, outcome=Outcome.MAX_TURNS)
    sibling = episode("train/1/b/2.0", reward=1.0, score=1.0)
    paid = episode("train/2/c/1.0", reward=1.0, score=0.0)
    run.log(played={"train-1": [*right, *wrong, sibling, unfinished, paid]})
    everything = shown(run)
    assert [one["id"] for one in everything.shown[:4]] == [
        "train/2/c/1.0",
        "train/1/b/0.0",
        "train/1/b/1.0",
        "train/2/c/0.0",
    ]
    assert (everything.num_played, everything.left_out) == (11, {})
    # Room for about five: the sibling of failures goes before the right ones of a group without any.
    room = max(len(str(one)) for one in everything.shown) * 5
    few = shown(run, max_bytes=room)
    assert {"train/2/c/1.0", "train/1/b/0.0", "train/1/b/1.0", "train/2/c/0.0", "train/1/b/2.0"} <= {
        one["id"] for one in few.shown
    }
    assert few.left_out == {"correct episodes": 11 - len(few.shown)}


def test_the_policy_that_an_evaluation_is_about_comes_before_the_others(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    first, last = held_out("base-0", [0.0, 0.0]), held_out("tuned-0", [0.0, 0.0])
    run.evaluated((evaluation("base", first), first), (evaluation("tuned", last), last))
    assert [one["policy"] for one in shown(run).shown] == ["tuned-0", "tuned-0", "base-0", "base-0"]


def test_turns_are_found_again_in_the_conversation_and_side_branches_stand_apart(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": '{"key": 1}'}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "none"},
        {"role": "assistant", "content": "done"},
    ]
    one = episode("train/0/a/0.0", reward=0.0, score=0.0, messages=messages, per_turn={0: 0.5, 1: -0.5})
    branch = episode("train/0/x/0.0", reward=0.0, score=0.0, text="a title").turns[0]
    object.__setattr__(one, "turns", (one.turns[0], branch, one.turns[1]))
    object.__setattr__(one, "transitions", ({"turn": 0, "tool": "get", "error": "unknown_tool"},))
    run.log(played={"train-1": [one]})
    (found,) = shown(run).shown
    assert [message.get("turn") for message in found["messages"]] == [None, 0, None, 2]
    assert found["messages"][1]["calls"] == [["get", '{"key": 1}']]
    assert found["messages"][2]["error"] == "unknown_tool"
    assert [message["text"] for message in found["aside"]] == ["a title"]
    assert [turn["reward"] for turn in found["turns"]] == [0.5, 0.5, -0.5]


def test_advantages_are_those_of_the_recipes_method_and_absent_where_they_would_need_more_than_rewards(
    tmp_path: Path,
) -> None:
    played = [episode(f"train/0/a/{place}.0", reward=reward, score=1.0) for place, reward in enumerate((1.0, 0.0, 0.0))]
    (tmp_path / "a").mkdir()
    run = StoredRun(tmp_path / "a", RECIPE + '[algorithm]\nadvantage_method = "rloo"\n')
    run.log(played={"train-1": played})
    by_id = {one["id"]: one["turns"][0]["advantage"] for one in shown(run).shown}
    # Each less the mean of the others: 1 - 0, 0 - 1/2.
    assert by_id == {"train/0/a/0.0": 1.0, "train/0/a/1.0": -0.5, "train/0/a/2.0": -0.5}
    (tmp_path / "b").mkdir()
    for name, keys, why in (
        ("b", '[algorithm]\nkl_coef = 0.1\nkl_form = "reward_k1"\n', "divergence"),
        ("c", '[algorithm]\nteacher = "expert"\n[policies.expert]\nweights = "base"\n', "teacher"),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        run = StoredRun(tmp_path / name, RECIPE + keys)
        run.log(played={"train-1": played})
        found = shown(run)
        assert "advantage" not in found.shown[0]["turns"][0]
        assert found.why_no_advantages is not None
        assert why in found.why_no_advantages


def test_tokens_are_kept_as_places_in_a_table_as_long_as_they_fit(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.log(played={"train-1": [episode(f"train/0/a/{place}.0", reward=1.0, score=1.0) for place in range(3)]})
    found = shown(run)
    turn = found.shown[0]["turns"][0]
    # Ids 0, 1 and 4, each at log-probability -0.5.
    assert [found.vocabulary[token] for token in turn["tokens"]] == ["the", " answer", "<|end|>"]
    assert turn["logprobs"] == [-50, -50, -50]
    assert found.without_tokens == 0
    # 3 tokens count 24 bytes.
    assert shown(run, max_token_bytes=48).without_tokens == 1
    (run.path / "vocabulary.json").unlink()
    assert shown(run).without_tokens == 3


def test_a_long_text_is_cut_and_marked_so_and_numbers_that_json_lacks_are_none(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.log(played={"train-1": [episode("train/0/a/0.0", reward=float("nan"), score=None, text="x" * 30_000)]})
    (found,) = shown(run).shown
    assert found["messages"][1]["text"].endswith("[... 10000 more characters in the run's folder]")
    assert found["reward"] is None


@pytest.mark.parametrize("name", ["train-1", "validation-2", "held_out-1"])
def test_every_split_is_shown_with_its_step(tmp_path: Path, name: str) -> None:
    run = StoredRun(tmp_path)
    split, _, number = name.rpartition("-")
    run.log(played={name: [episode(f"{split}/p/a/0.0", reward=1.0, score=1.0)]})
    (found,) = shown(run).shown
    assert (found["split"], found["number"]) == (split, int(number))


def test_an_index_reads_a_file_again_only_after_it_has_changed_and_gives_the_same_episodes(tmp_path: Path) -> None:
    run, index = StoredRun(tmp_path), EpisodeIndex()

    def step(number: int, score: float) -> None:
        played = [episode(f"train/{number}/a/{place}.0", reward=score, score=score) for place in range(2)]
        run.log(played={f"train-{number}": played})

    def same() -> Episodes:
        record = read_run(run.path)
        found, fresh = episodes(record, index=index), episodes(record)
        assert found == fresh
        return found

    step(1, 0.0)
    assert len(same().shown) == 2
    first = run.path / "trajectories" / "train-1.jsonl"
    before = first.stat()
    # With its size and time unchanged, the damaged file is not read again.
    content = first.read_bytes()
    first.write_bytes(b"x" * len(content))
    os.utime(first, ns=(before.st_atime_ns, before.st_mtime_ns))
    step(2, 1.0)
    assert len(episodes(read_run(run.path), index=index).shown) == 4
    # A changed file is read again.
    step(1, 1.0)
    assert [one["right"] for one in same().shown] == [True] * 4


def test_the_tokens_of_an_earlier_page_are_not_kept_where_they_no_longer_fit(tmp_path: Path) -> None:
    run, index = StoredRun(tmp_path), EpisodeIndex()
    run.log(played={"train-1": [episode("train/1/a/0.0", reward=1.0, score=1.0)]})
    record = replace(read_run(run.path), vocabulary=["a"] * 300)
    (before,) = episodes(record, index=index).shown
    assert "tokens" in before["turns"][0]
    none = episodes(record, index=index, max_token_bytes=0)
    assert none.without_tokens == 1
    assert "tokens" not in none.shown[0]["turns"][0]


def test_a_report_is_the_same_with_digests_without_them_and_with_damaged_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = StoredRun(tmp_path)
    for step in (1, 2):
        scores = (0.0, 1.0, 0.0, 1.0)
        played = [
            episode(f"train/{step}/t{step}/{place}.0", reward=1.0 if place < 2 else 0.0, score=score, text="<a>7</a>")
            for place, score in enumerate(scores)
        ]
        unfinished = episode(f"train/{step}/u/0.0", reward=0.0, score=None, outcome=Outcome.MAX_TURNS)
        validated = [episode(f"validation/{step}/v/0.0", reward=1.0, score=0.0)]
        run.log(
            {step: {"rollout/reward/mean": 0.5}},
            {f"train-{step}": [*played, unfinished], f"validation-{step}": validated},
        )
    first, last = held_out("base-0", [0.0, 1.0]), held_out("tuned-0", [1.0, 1.0], rewards=[0.0, 1.0])
    run.evaluated((evaluation("base", first), first), (evaluation("tuned", last), last))
    page, folder = run.path / "report.html", run.path / "digests"
    with monkeypatch.context() as patch:
        # Training and evaluations have written all digests.
        patch.setattr(digests, "read_placed_trajectories", None)
        assert write_report(run.path).num_episodes == 16
    expected = page.read_bytes()
    assert b"paid_wrong" in expected
    assert b"unpaid_right" in expected
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 5

    def is_same() -> bool:
        write_report(run.path)
        return page.read_bytes() == expected and sorted(path.name for path in folder.iterdir()) == names

    shutil.rmtree(folder)
    assert is_same()
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-10])
    assert is_same()
    (run.path / "trajectories" / "train-2.jsonl").touch()
    assert is_same()
