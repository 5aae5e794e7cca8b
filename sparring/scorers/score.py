"""The validation of a scorer's return value."""

from __future__ import annotations

from collections.abc import Mapping

from sparring.errors import InfrastructureError, RewardError, ServiceError
from sparring.protocols import Scorer
from sparring.runtime.missing_parts import explain_missing_state
from sparring.runtime.plugins import call
from sparring.types import Score, Trajectory


async def evaluate_score(function: Scorer, trajectory: Trajectory) -> Score:
    """Call a scorer, sync or async, and check its return value.

    Raises RewardError, which names the scorer, unless the scorer returns a number in [0, 1] or a Score of such numbers.
    Does not catch InfrastructureError (a sandbox cannot start) and ServiceError (an LLM judge rejects the key).
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        returned = await call(function, trajectory)
    except (InfrastructureError, ServiceError):
        raise
    except Exception as error:
        raise RewardError(
            f"Scorer {name!r} raised {error!r} on trajectory {trajectory.id}.{explain_missing_state(function, trajectory)}"
        ) from error
    source = f"Scorer {name!r} returned"
    if not isinstance(returned, Score):
        return Score(_share(returned, source, trajectory))
    if not isinstance(returned.parts, Mapping):
        raise RewardError(
            f"{source} parts {returned.parts!r} on trajectory {trajectory.id}; they must map names to numbers from 0 "
            "to 1."
        )
    parts = {str(part): _share(value, f"{source} {part} =", trajectory) for part, value in returned.parts.items()}
    return Score(_share(returned.value, source, trajectory), parts)


def _share(value: object, source: str, trajectory: Trajectory) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise RewardError(
            f"{source} {value!r} on trajectory {trajectory.id}; it must be a number from 0 to 1, or a Score of such "
            "numbers."
        )
    return float(value)
