"""Gymnasium's own environments played through the adapter, and its spaces as JSON schemas."""

import asyncio
import json
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed; pip install 'sparring[gymnasium]'")

import numpy as np  # noqa: E402
from gymnasium import spaces  # noqa: E402

from sparring.agents import EnvironmentAgent  # noqa: E402
from sparring.agents.result import AgentResult  # noqa: E402
from sparring.agents.scripted_session import ScriptedSession  # noqa: E402
from sparring.environments import answer, tool_call  # noqa: E402
from sparring.environments.adapters import episode_return  # noqa: E402
from sparring.environments.adapters.gymnasium_environment import GymnasiumEnvironment, seeded_tasks  # noqa: E402
from sparring.environments.adapters.gymnasium_spaces import (  # noqa: E402
    action_from_json,
    action_schema,
    as_text,
    without_colors,
)
from sparring.environments.schema_tools import SchemaTool  # noqa: E402
from sparring.errors import InfrastructureError, UsageError  # noqa: E402
from sparring.types import Message, Outcome, Task, Trajectory  # noqa: E402

MOVES = ["left", "down", "right", "up"]
LAKE = {"id": "FrozenLake-v1", "arguments": {"is_slippery": False}, "actions": MOVES}
TAXI = "Taxi-v3" if "Taxi-v3" in gymnasium.registry else "Taxi-v4"


def play(
    options: dict[str, Any], *messages: Message, seed: int = 0, of: type[GymnasiumEnvironment] = GymnasiumEnvironment
) -> AgentResult:
    environment_class = of.with_options(**options)
    (task,) = seeded_tasks("Reach the goal.", num=1, first_seed=seed)
    agent = EnvironmentAgent(lambda: environment_class(**options), max_turns=20)
    return asyncio.run(agent.play(task, ScriptedSession(*messages)))


def steps(*actions: Any) -> list[Message]:
    return [tool_call("step", action=action) for action in actions]


def returned(result: AgentResult) -> float:
    task = Task(id="t", messages=())
    return episode_return(
        Trajectory(
            id="t",
            task=task,
            attempt=0,
            turns=(),
            messages=(),
            outcome=result.outcome,
            reward=None,
            score=None,
            transitions=result.transitions,
        )
    )


def test_the_frozen_lake_is_crossed_by_the_way_that_the_map_shows() -> None:
    # SFFF / FHFH / FFFH / HFFG: down, down, right, right, down, right; cells are numbered row by row, 4 in each.
    result = play(LAKE, *steps("down", "down", "right", "right", "down", "right"))
    assert result.outcome is Outcome.FINISHED
    assert [transition["result"] for transition in result.transitions] == ["4", "8", "9", "10", "14", "15"]
    assert [transition["reward"] for transition in result.transitions] == [0, 0, 0, 0, 0, 1]
    assert [transition["terminated"] for transition in result.transitions] == [False] * 5 + [True]
    assert returned(result) == 1.0


def test_a_hole_ends_the_episode_without_reward_and_later_calls_of_the_message_do_nothing() -> None:
    both = {**tool_call("step", action="right"), "tool_calls": [*tool_call("step", action="right")["tool_calls"]] * 3}
    result = play(LAKE, *steps("down"), both)
    assert [transition["result"] for transition in result.transitions] == [
        "4",
        "5",
        "error: the episode is over",
        "error: the episode is over",
    ]
    assert returned(result) == 0.0
    assert result.outcome is Outcome.FINISHED


def test_the_opening_message_shows_the_first_observation_drawn_where_the_environment_draws() -> None:
    result = play(
        {"id": "FrozenLake-v1", "arguments": {"render_mode": "ansi", "is_slippery": False}}, answer("I stay.")
    )
    assert result.messages[0] == {"role": "user", "content": "Reach the goal.\n\n[S]FFF\nFHFH\nFFFH\nHFFG"}


def test_a_time_limit_truncates() -> None:
    options = {**LAKE, "arguments": {"is_slippery": False, "max_episode_steps": 2}}
    result = play(options, *steps("left", "left"))
    assert [transition["truncated"] for transition in result.transitions] == [False, True]
    assert result.outcome is Outcome.FINISHED


def test_the_task_s_seed_decides_what_is_dealt() -> None:
    def dealt(seed: int) -> Any:
        return play({"id": "Blackjack-v1"}, answer("I wait."), seed=seed).messages[0]["content"]

    assert dealt(3) == dealt(3)
    assert len({dealt(seed) for seed in range(8)}) > 1


def test_sticking_in_blackjack_ends_the_game_with_a_reward_of_its_rules() -> None:
    result = play({"id": "Blackjack-v1"}, *steps(0), seed=1)
    assert result.outcome is Outcome.FINISHED
    assert returned(result) in (-1.0, 0.0, 1.0)


def test_a_taxi_that_picks_up_no_passenger_pays_ten() -> None:
    # Reward -10 for an illegal pick-up (action 4), -1 for any other step: the passenger is never at all four corners.
    result = play({"id": TAXI}, *steps(4, 4, 1, 4), answer("I give up."), seed=0)
    assert {transition["reward"] for transition in result.transitions} <= {-1.0, -10.0}
    assert -10.0 in [transition["reward"] for transition in result.transitions]
    assert result.outcome is Outcome.FINISHED


@pytest.mark.parametrize("action", ["north", 2, True, None])
def test_an_action_outside_the_space_is_reported_and_takes_no_step(action: Any) -> None:
    result = play(LAKE, *steps(action), answer("I stay."))
    assert result.transitions[0]["error"] == "wrong_type"
    assert "reward" not in result.transitions[0]


def test_an_observation_that_is_no_text_needs_words() -> None:
    with pytest.raises(UsageError, match=r"more than 512 numbers.*describe"):
        GymnasiumEnvironment.with_options(id="Picture-v0")
    result = play({"id": "Picture-v0"}, *steps(0), of=Described)
    assert result.messages[0]["content"] == "Reach the goal.\n\n0 of 1024 dots are lit"
    assert result.messages[-1]["content"] == "1024 of 1024 dots are lit"


def test_an_environment_that_fails_at_a_legal_action_is_an_outage() -> None:
    with pytest.raises(InfrastructureError, match="the lamp is broken"):
        play({"id": "Picture-v0"}, *steps(1), of=Described)
    with pytest.raises(InfrastructureError, match="reward nan"):
        play({"id": "Picture-v0"}, *steps(2), of=Described)


class Picture(gymnasium.Env):
    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(0, 255, (32, 32), dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros((32, 32), dtype=np.uint8), {}

    def step(self, action: Any) -> Any:
        if action == 1:
            raise RuntimeError("the lamp is broken")
        return np.ones((32, 32), dtype=np.uint8), float("nan") if action == 2 else 1.0, True, False, {}


gymnasium.register("Picture-v0", Picture, disable_env_checker=True)


class Described(GymnasiumEnvironment):
    def describe(self, observation: Any) -> str:
        return f"{int((observation > 0).sum())} of {observation.size} dots are lit"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": "NoSuchGame-v0"}, "gymnasium.make('NoSuchGame-v0'"),
        ({"id": "FrozenLake-v1", "actions": ["left", "right"]}, "does not name the actions of Discrete"),
        ({"id": "FrozenLake-v1", "arguments": {"map_nam": "4x4"}}, "map_nam"),
    ],
)
def test_options_that_make_no_environment_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        GymnasiumEnvironment.with_options(**options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("space", "schema"),
    [
        (spaces.Discrete(3, start=-1), {"type": "integer", "minimum": -1, "maximum": 1}),
        (spaces.Box(-1, np.inf, (), dtype=np.float64), {"type": "number", "minimum": -1.0}),
        (
            spaces.MultiDiscrete([2, 3]),
            {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "prefixItems": [
                    {"type": "integer", "minimum": 0, "maximum": 1},
                    {"type": "integer", "minimum": 0, "maximum": 2},
                ],
            },
        ),
        (
            spaces.Text(4, min_length=1, charset="a]"),
            {"type": "string", "minLength": 1, "maxLength": 4, "pattern": r"^[\]a]*$"},
        ),
    ],
)
def test_bounds_of_a_space_are_bounds_of_its_schema(space: Any, schema: dict[str, Any]) -> None:
    assert action_schema(space) == schema


def test_every_member_of_a_space_fits_its_schema_and_comes_back() -> None:
    space = spaces.Dict(
        {
            "number": spaces.Discrete(3, start=-1),
            "word": spaces.Text(4, min_length=1, charset="a-]^"),
            "grid": spaces.MultiDiscrete([[2, 3], [4, 5]]),
            "force": spaces.Box(-2.5, 1, (2,)),
            "level": spaces.Box(0, 9, (), dtype=np.int64),
            "both": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-np.inf, np.inf, (1,)))),
        },
        seed=3,
    )
    tool = SchemaTool("step", "", action_schema(space))
    for _ in range(100):
        sampled = json.loads(as_text(space.sample()))
        assert tool.problem_with(sampled) is None
        assert space.contains(action_from_json(space, sampled))


def test_numbers_of_an_observation_keep_the_digits_of_their_type_and_what_is_no_number_is_shown_as_it_is() -> None:
    assert as_text(np.array([0.1, 1 / 3, np.nan, -np.inf], dtype=np.float32)) == "[0.1,0.33333334,NaN,-Infinity]"
    assert as_text({"a": (np.float64(1 / 3), np.int8(1), np.array(2))}) == '{"a":[0.3333333333333333,1,2]}'
    with pytest.raises(TypeError, match="complex"):
        as_text(np.array([1j]))


def test_a_space_without_schema_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(UsageError, match=r"Sequence.*Text, Discrete, MultiDiscrete"):
        action_schema(spaces.Sequence(spaces.Discrete(2)))


def test_colors_of_a_drawing_become_brackets() -> None:
    assert without_colors("S\x1b[41mF\x1b[0mF\n\x1b[34;1mH\x1b[0m") == "S[F]F\n[H]"


def test_tasks_of_disjoint_seeds_share_no_id() -> None:
    train, held_out = seeded_tasks("Go.", 4), seeded_tasks("Go.", 3, first_seed=4)
    assert [task.seed for task in train] == [0, 1, 2, 3]
    assert not {task.id for task in train} & {task.id for task in held_out}
    # The words are the same: a field distinguishes the tasks.
    assert [task.fields for task in held_out] == [{"seed": 4}, {"seed": 5}, {"seed": 6}]


class Drawn(GymnasiumEnvironment):
    """A map for each task."""

    def arguments_of(self, task: Task) -> dict[str, Any]:
        return {"desc": ["SF", "HG"] if task.seed else ["SH", "FG"]}


@pytest.mark.parametrize(("seed", "moves"), [(0, ("down", "right")), (1, ("right", "down"))])
def test_a_task_gives_arguments_of_its_environment(seed: int, moves: tuple[str, ...]) -> None:
    result = play(LAKE, *steps(*moves), seed=seed, of=Drawn)
    assert [step["reward"] for step in result.transitions] == [0.0, 1.0]
