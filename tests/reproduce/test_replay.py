"""Stored episodes are played again without a model, and the first thing that the environment does differently is named."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.cli import app
from sparring.config import load_config
from sparring.environments import answer, tool_call
from sparring.errors import ContextOverflow, PolicyTimeout
from sparring.reproduce.replay import Difference, Field, Replay, Replays
from sparring.run_folders import RunFolder
from sparring.runtime.plugins import load_object
from sparring.tracking import LocalTracker
from sparring.types import Message, Outcome, Trajectory, TrajectoryGroup

RECIPE = """
[environment]
target = "shop:Shop"
max_turns = 4
[data]
train = "shop:tasks"
[reward]
reward = "shop:reward"
[rollout]
rollout_timeout = 5.0
[engine]
type = "scripted"
script = "shop:act"
"""

SHOP = '''
import asyncio
import os
from sparring.environments import StatefulEnvironment, UserSimulator, tool, tool_call, answer
from sparring.errors import InfrastructureError
from sparring.types import Task


class Shop(StatefulEnvironment):
    """Does what the variable SHOP names."""

    is_done = False

    def reset(self, task):
        super().reset(task)
        self.how, self.prices, self.num_replies = os.environ.get("SHOP", ""), task.fields["prices"], 0
        self.customer = UserSimulator("customer", "You want ink.")
        greeting = "hi" if self.how == "greets" else "hello"
        # An example first, so that the opening holds what an assistant answered.
        return [{"role": "user", "content": greeting}, {"role": "assistant", "content": "welcome"}, *task.messages]

    @tool
    def look(self, shelf: int) -> dict:
        """What is on a shelf."""
        if self.how == "fails":
            raise InfrastructureError("the shop is closed")
        if self.how == "raises":
            raise ValueError("no light")
        self.is_done = self.how == "ends"
        price = self.prices[shelf] + (self.how == "dearer")
        return {"items": [{"name": "pen", "price": price}], "at": self.state.clock.now().isoformat()}

    @tool
    async def where(self) -> str:
        """The folder."""
        if self.how == "hangs":
            await asyncio.sleep(60)
        return str(self.state.directory)

    async def reply(self, messages, session):
        if self.how == "customer":
            return await self.customer.reply(messages, session)
        self.num_replies += 1
        if self.num_replies == 1:
            return "no" if self.how == "refuses" else "yes"
        return "more?" if self.how == "goes on" else None


def tasks():
    pen = {"role": "user", "content": "a pen"}
    return [Task(id=f"task-{n}", seed=n, messages=(pen,), fields={"prices": {1: 2.5}}) for n in range(40)]


def reward(trajectory):
    return 1.0


def act(messages):
    num_answers = sum(message["role"] == "assistant" for message in messages)
    return [tool_call("look", shelf=1), answer("a pen?"), answer("sold")][num_answers - 1]
'''

LOOK, OFFER, SOLD = tool_call("look", shelf=1), answer("a pen?"), answer("sold")
CALL = 'turn 0, call 1: look({"shelf":1})'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    recipe = Path("toy/recipe.toml")
    recipe.parent.mkdir()
    recipe.write_text(RECIPE)
    recipe.with_name("shop.py").write_text(SHOP)
    return RunFolder.create(load_config(recipe), recipe, name="one")


def stored(
    run: RunFolder,
    script: Sequence[Message | Exception],
    *,
    customer: Sequence[Message | Exception] = (),
    num: int = 1,
    step: int = 3,
    max_turns: int = 4,
    cut: bool = False,
) -> list[str]:
    """Play some episodes in the run's environment and store them as those of a training step; their ids."""
    shop, tasks = (load_object(f"shop:{name}", folder=run.code) for name in ("Shop", "tasks"))
    trajectories = []
    for task in tasks()[:num]:
        other = ScriptedSession(*customer)
        session = ScriptedSession(*script, others={"customer": other}, cut=cut)
        result = asyncio.run(EnvironmentAgent(shop, max_turns=max_turns).play(task, session))
        trajectories.append(
            Trajectory(
                id=f"train/{step}/{task.id}/0.0",
                task=task,
                attempt=0,
                turns=session.turns,
                messages=result.messages,
                outcome=result.outcome,
                reward=None,
                score=None,
                transitions=result.transitions,
                error=result.error,
                other_turns=tuple(dataclasses.replace(turn, policy="customer", learns=False) for turn in other.turns),
            )
        )
    tracker = LocalTracker(run.path)
    groups = [TrajectoryGroup(task=one.task, trajectories=(one,)) for one in trajectories]
    tracker.log_groups(step, groups, split="train")
    tracker.close()
    return [one.id for one in trajectories]


def sparring(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), terminal_width=250)


@pytest.mark.parametrize(
    ("script", "options", "outcome"),
    [
        ((LOOK, OFFER, SOLD), {}, Outcome.FINISHED),
        ((LOOK, LOOK), {"max_turns": 2}, Outcome.MAX_TURNS),
        ((OFFER, answer("cut off")), {"cut": True}, Outcome.MAX_TOKENS),
        ((LOOK, ContextOverflow("full")), {}, Outcome.MAX_TOKENS),
        ((LOOK, OFFER, PolicyTimeout("late")), {}, Outcome.POLICY_TIMEOUT),
        ((tool_call("look", shelf="1"), tool_call("lok"), OFFER, SOLD), {}, Outcome.FINISHED),
        (({**LOOK, "tool_calls": [*LOOK["tool_calls"], *LOOK["tool_calls"]]}, OFFER, SOLD), {}, Outcome.FINISHED),
        (
            (
                {"role": "assistant", "content": "", "malformed_tool_calls": [{"text": "{", "problem": "not_json"}]},
                OFFER,
                SOLD,
            ),
            {},
            Outcome.FINISHED,
        ),
        ((PolicyTimeout("at once"),), {}, Outcome.POLICY_TIMEOUT),
    ],
)
def test_an_environment_that_does_the_same_has_no_difference(
    run: RunFolder, script: Sequence[Any], options: dict[str, Any], outcome: Outcome
) -> None:
    (episode,) = stored(run, script, **options)
    (row,) = [json.loads(line) for line in (run.path / "trajectories" / "train-3.jsonl").read_text().splitlines()]
    assert row["outcome"] == outcome
    num_calls = sum(len(message.get("tool_calls", ())) for message in script if isinstance(message, dict))
    assert list(Replays(run.path, episode)) == [Replay(episode=episode, num_calls=num_calls)]


@pytest.mark.parametrize(
    ("how", "place", "field"),
    [
        ("greets", "reset", Field(path="messages[0].content", recorded="hello", now="hi")),
        ("dearer", CALL, Field(path="result.items[0].price", recorded=2.5, now=3.5)),
        ("refuses", "turn 1, reply", Field(path="reply", recorded="yes", now="no")),
        ("ends", "turn 1, reply", Field(path="next", recorded="turn 1, reply", now="end, after turn 0")),
        ("goes on", "end, after turn 2", Field(path="next", recorded="end, after turn 2", now="turn 2, reply")),
    ],
)
def test_the_first_difference_is_named_with_its_field(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, how: str, place: str, field: Field
) -> None:
    (episode,) = stored(run, (LOOK, OFFER, SOLD))
    monkeypatch.setenv("SHOP", how)
    (replay,) = Replays(run.path, episode)
    assert replay.difference == Difference(place=place, fields=(field,), is_noise=False)


def test_an_error_in_place_of_a_result_is_a_difference_of_both(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    (episode,) = stored(run, (LOOK, OFFER, SOLD))
    monkeypatch.setenv("SHOP", "raises")
    (replay,) = Replays(run.path, episode)
    assert replay.difference is not None
    assert [(field.path, field.now) for field in replay.difference.fields] == [
        ("result", "error: look failed: ValueError: no light"),
        ("error", "tool_raised"),
    ]


def test_what_differs_by_temporary_names_alone_is_marked_as_noise(run: RunFolder) -> None:
    (episode,) = stored(run, (tool_call("where"), OFFER, SOLD))
    (replay,) = Replays(run.path, episode)
    assert replay.difference is not None
    assert replay.difference.place == "turn 0, call 1: where({})"
    assert replay.difference.is_noise


@pytest.mark.parametrize("replies", [(answer("ink"), answer("###STOP###")), (answer("ink"), PolicyTimeout("late"))])
def test_a_user_that_another_policy_simulated_answers_the_same_again(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, replies: Sequence[Any]
) -> None:
    monkeypatch.setenv("SHOP", "customer")
    (episode,) = stored(run, (OFFER, SOLD), customer=replies)
    assert list(Replays(run.path, episode)) == [Replay(episode=episode, num_calls=0)]


@pytest.mark.parametrize(
    ("how", "script", "problem"),
    [
        ("fails", (LOOK, OFFER, SOLD), "the shop is closed"),
        ("hangs", (tool_call("where"), OFFER, SOLD), "rollout_timeout = 0.2 s"),
    ],
)
def test_an_environment_that_fails_now_is_no_difference_but_an_outage(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, how: str, script: Sequence[Message], problem: str
) -> None:
    (episode,) = stored(run, script)
    run.recipe.write_text(run.recipe.read_text().replace("rollout_timeout = 5.0", "rollout_timeout = 0.2"))
    monkeypatch.setenv("SHOP", how)
    (replay,) = Replays(run.path, episode)
    assert replay.difference is None
    assert problem in str(replay.problem)
    result = sparring("replay", "one", episode)
    assert result.exit_code == 4
    assert "1 of 1 episodes could not be replayed to the end" in result.output


def test_all_of_the_newest_training_step_are_replayed_and_a_file_may_be_named(run: RunFolder) -> None:
    stored(run, (LOOK, OFFER, SOLD), step=2)
    newest = stored(run, (LOOK, OFFER, SOLD), step=10, num=3)
    shutil.copy(run.path / "trajectories" / "train-2.jsonl", run.path / "trajectories" / "held_out-11.jsonl")
    replays = Replays(run.path)
    assert (replays.source, len(replays)) == ("train-10", 3)
    assert [replay.episode for replay in replays] == newest
    assert Replays(run.path, "held_out-11").source == "held_out-11"
    (run.path / "trajectories" / "train-2.jsonl").unlink()
    (run.path / "trajectories" / "train-10.jsonl").unlink()
    assert Replays(run.path).source == "held_out-11"


def test_the_command_evaluates_stores_replays_and_reports_differences_by_its_exit_code(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sparring("eval", "one", "evaluation.eval_num_tasks=4").exit_code == 0
    same = sparring("replay", "one")
    assert same.exit_code == 0, same.output
    # Three turns an episode, of which the first is a call.
    assert [cell.strip() for cell in same.stdout.splitlines()[4].split("│")[1:-1]] == ["held_out-1", "4", "4", "0", "0"]

    monkeypatch.setenv("SHOP", "dearer")
    different = sparring("replay", "one", "--json")
    assert different.exit_code == 5
    assert "4 of 4 episodes differ from the recording" in different.stderr
    rows = json.loads(different.stdout)
    assert [row["difference"]["place"] for row in rows] == [CALL] * 4
    assert rows[0]["difference"]["fields"] == [{"path": "result.items[0].price", "recorded": 2.5, "now": 3.5}]
    shown = sparring("replay", "one", rows[0]["episode"])
    assert shown.exit_code == 5
    assert f"{rows[0]['episode']}, {CALL}:\n  result.items[0].price: recorded 2.5\n" in shown.stdout
    assert f"{'':25}now      3.5\n" in shown.stdout


def test_an_unknown_episode_lists_near_ones(run: RunFolder) -> None:
    stored(run, (OFFER, SOLD), num=2)
    result = sparring("replay", "one", "train/3/task-1/0.9")
    assert result.exit_code == 2
    assert "has no episode 'train/3/task-1/0.9'; similar ids are train/3/task-1/0.0" in " ".join(result.output.split())


def test_what_has_nothing_to_replay_is_refused(run: RunFolder) -> None:
    assert "has no episodes in trajectories/ yet" in sparring("replay", "one").output
    assert sparring("replay", "one").exit_code == 3

    recording = Path("runs/recorded-001")
    recording.mkdir()
    (recording / "manifest.json").write_text('{"format": 1, "kind": "recording"}')
    result = sparring("replay", str(recording))
    assert (result.exit_code, "is a recording of an endpoint" in result.output) == (2, True)

    stored(run, (OFFER, SOLD))
    text = run.recipe.read_text()
    assert 'target = "shop:Shop"\nmax_turns = 4\n' in text
    run.recipe.write_text(text.replace('target = "shop:Shop"\nmax_turns = 4\n', "") + '\n[agent]\ncommand = ["true"]\n')
    result = sparring("replay", "one")
    assert result.exit_code == 2, result.output
    assert "an agent with its own environment" in " ".join(result.output.split())
