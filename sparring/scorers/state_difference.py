"""Score what an episode did to its world, whatever was said about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sparring.errors import RewardError
from sparring.protocols import Scorer
from sparring.scorers.answers import is_same
from sparring.scorers.conduct import conduct
from sparring.types import Json, Outcome, Score, Trajectory


def state_difference(expected: str = "state", *, ignored: Collection[str] = ()) -> Scorer:
    """1.0 when the world at the end is the expected one in everything, else 0.0.

    The end is what `Environment.final_state` says, an object; task.fields[`expected`] is what it should be. What is there
    and not expected counts as much as what is missing; `ignored` names the keys that do not (a log, a clock). Parts:
    `state/<key>` of each key on either side, and how the episode went.

    Raises RewardError for an episode that ended by itself and says no state.
    """

    def state_difference_score(trajectory: Trajectory) -> Score:
        wanted: Mapping[str, Json] = trajectory.task.fields[expected]
        state = trajectory.final_state
        if not isinstance(state, Mapping):
            if trajectory.outcome is Outcome.FINISHED:
                raise RewardError(
                    f"{trajectory.id} ended with the state {state!r}, and an object is needed to compare; define `final_state` "
                    "in the environment, which returns what its tools may change as a dict."
                )
            state = {}
        keys = sorted((wanted.keys() | state.keys()) - set(ignored))
        parts = {
            f"state/{key}": float(key in state and key in wanted and is_same(state[key], wanted[key])) for key in keys
        }
        return Score(float(all(parts.values())), {**parts, **conduct(trajectory)})

    return state_difference_score
