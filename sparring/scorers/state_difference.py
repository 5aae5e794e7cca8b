"""Scores the final state of an episode's environment, whatever the policy wrote about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sparring.errors import RewardError
from sparring.protocols import Scorer
from sparring.scorers.answers import is_same
from sparring.scorers.conduct import conduct
from sparring.types import Json, Outcome, Score, Trajectory


def state_difference(expected: str = "state", *, ignored: Collection[str] = ()) -> Scorer:
    """Return a scorer: 1.0 when the final state equals the expected one in everything, else 0.0.

    The final state is the object that `Environment.final_state` returned; task.fields[`expected`] is the expected one. An
    unexpected key counts as much as a missing one; `ignored` names the keys that do not count (a log, a clock). Parts:
    `state/<key>` of each key on either side, and how the episode went.

    Raises RewardError for an episode that ended by itself without a state.
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
