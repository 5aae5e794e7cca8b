"""Scores the final state of an episode's environment, regardless of what the policy wrote about the state."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sparring.errors import RewardError
from sparring.protocols import Scorer
from sparring.scorers.answers import is_same
from sparring.scorers.conduct import conduct
from sparring.types import Json, Outcome, Score, Trajectory


def state_difference(expected: str = "state", *, ignored: Collection[str] = ()) -> Scorer:
    """Return a scorer that gives 1.0 if the final state equals the expected state in every key, else 0.0.

    The final state is the object that `Environment.final_state` returned. The expected state is
    task.fields[`expected`]. An unexpected key lowers the score as much as a missing key does. `ignored` names the keys
    that are not compared (a log, a clock). Parts: `state/<key>` for each key of either state, and the conduct of the
    episode.

    Raises RewardError for an episode that ended by itself without a state.
    """

    def state_difference_score(trajectory: Trajectory) -> Score:
        wanted: Mapping[str, Json] = trajectory.task.fields[expected]
        state = trajectory.final_state
        if not isinstance(state, Mapping):
            if trajectory.outcome is Outcome.FINISHED:
                raise RewardError(
                    f"{trajectory.id} ended with the state {state!r}, but the comparison needs an object. Define "
                    "`final_state` in the environment, or hand it over as `final_state` of an AgentReport in an agent of your "
                    "own; it must contain everything that the tools may change, as a dict."
                )
            state = {}
        keys = sorted((wanted.keys() | state.keys()) - set(ignored))
        parts = {
            f"state/{key}": float(key in state and key in wanted and is_same(state[key], wanted[key])) for key in keys
        }
        return Score(float(all(parts.values())), {**parts, **conduct(trajectory)})

    return state_difference_score
