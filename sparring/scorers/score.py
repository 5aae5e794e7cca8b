"""Any callable's judgement made into a checked Score."""

from __future__ import annotations

from collections.abc import Mapping

from sparring.errors import InfrastructureError, RewardError, ServiceError
from sparring.plugins import call
from sparring.protocols import Scorer
from sparring.types import Score, Trajectory


async def evaluate_score(function: Scorer, trajectory: Trajectory) -> Score:
    """Call a scorer, sync or async, and check what it says.

    Raises RewardError naming it unless it says a number in [0, 1], or a Score of such numbers; InfrastructureError of the
    function (a sandbox that cannot start) passes, and so does ServiceError (a judge that refuses the key).
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        said = await call(function, trajectory)
    except (InfrastructureError, ServiceError):
        raise
    except Exception as error:
        raise RewardError(f"Scorer {name!r} raised {error!r} on trajectory {trajectory.id}.") from error
    source = f"Scorer {name!r} said"
    if not isinstance(said, Score):
        return Score(_share(said, source, trajectory))
    if not isinstance(said.parts, Mapping):
        raise RewardError(
            f"{source} parts {said.parts!r} on trajectory {trajectory.id}; they must be numbers from 0 to 1 by name."
        )
    parts = {str(part): _share(value, f"{source} {part} =", trajectory) for part, value in said.parts.items()}
    return Score(_share(said.value, source, trajectory), parts)


def _share(value: object, source: str, trajectory: Trajectory) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise RewardError(
            f"{source} {value!r} on trajectory {trajectory.id}; it must return a number from 0 to 1, or a Score whose value and "
            "parts are."
        )
    return float(value)
