"""The trend of a run: whether its reward rises, whether its score rises, and whether the score explains the reward."""

from __future__ import annotations

from dataclasses import dataclass

from sparring.detectors.evidence import (
    Estimate,
    Windows,
    are_scored,
    reward,
    score,
    spread,
    steps_of,
    when,
    windows,
    worth,
)
from sparring.run_folders.history import History
from sparring.types import Json

SURE = 3.0
"""The number of standard errors from which a change counts as certain."""
LIKELY = 2.0
EXPLAINED = 0.5
"""The smallest share of the reward's rise that the rise of the score must explain."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The change from the first steps to the last steps. Without a scorer, `scores` and `worth` are None. `worth` is
    also None if all scores are equal."""

    windows: Windows
    rewards: Estimate
    scores: Estimate | None
    worth: float | None

    @property
    def scale(self) -> float:
        """The unit for reward differences: the reward for a correct answer, or the spread of rewards if this is
        unknown."""
        if self.worth is not None and self.worth > 0:
            return self.worth
        return spread(one.digest.reward for one in self.windows.all)

    @property
    def is_explained(self) -> bool:
        """True if the rise of the score explains at least half of the rise of the reward. False without a scorer."""
        if self.scores is None:
            return False
        return self.scores.value * self.scale >= EXPLAINED * self.rewards.value and self.scores.value > 0

    @property
    def score_falls(self) -> bool:
        return self.scores is not None and (-self.scores).exceeds(SURE)

    def as_json(self) -> dict[str, Json]:
        before, now = self.windows.means(reward)
        content: dict[str, Json] = {
            "steps": [steps_of(self.windows.before), steps_of(self.windows.now)],
            "reward": [round(before, 4), round(now, 4)],
        }
        if self.scores is not None:
            before, now = self.windows.means(score)
            content["score"] = [round(before, 4), round(now, 4)]
            content["score_change_error"] = round(self.scores.error, 4)
        return content

    @property
    def in_words(self) -> str:
        """The compared steps, as text."""
        before, now = (when(part) for part in (self.windows.before, self.windows.now))
        return f"between {before} and {now}"


def trend(history: History) -> Trend | None:
    """Return the trend of a run, or None if there are too few steps or episodes."""
    compared = windows(history)
    if compared is None:
        return None
    is_scored = are_scored(compared.all)
    return Trend(
        windows=compared,
        rewards=compared.change(reward),
        scores=compared.change(score) if is_scored else None,
        worth=worth(compared.all) if is_scored else None,
    )
