"""How a run goes: whether its reward rises, whether the score does, and whether the one explains the other."""

from __future__ import annotations

from dataclasses import dataclass

from sparring.detectors.evidence import (
    Estimate,
    Windows,
    are_judged,
    reward,
    score,
    spread,
    steps_of,
    when,
    windows,
    worth,
)
from sparring.history import History
from sparring.types import Json

SURE = 3.0
"""Standard errors from which on a change is taken for one."""
LIKELY = 2.0
EXPLAINED = 0.5
"""Share of the reward's rise that the score's must account for."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The change from the first steps to the last. `scores` and `worth` are None without a scorer, `worth` also while all
    scores are equal."""

    windows: Windows
    rewards: Estimate
    scores: Estimate | None
    worth: float | None

    @property
    def scale(self) -> float:
        """What a difference of reward is measured by: what being right earns, else how far rewards lie apart."""
        if self.worth is not None and self.worth > 0:
            return self.worth
        return spread(one.digest.reward for one in self.windows.all)

    @property
    def is_explained(self) -> bool:
        """Whether the score has risen as much as the reward has, or half of it. False where no scorer says so."""
        if self.scores is None:
            return False
        return self.scores.value * self.scale >= EXPLAINED * self.rewards.value and self.scores.value > 0

    @property
    def score_falls(self) -> bool:
        return self.scores is not None and (-self.scores).exceeds(SURE)

    def as_json(self) -> dict[str, Json]:
        before, now = self.windows.means(reward)
        said: dict[str, Json] = {
            "steps": [steps_of(self.windows.before), steps_of(self.windows.now)],
            "reward": [round(before, 4), round(now, 4)],
        }
        if self.scores is not None:
            before, now = self.windows.means(score)
            said["score"] = [round(before, 4), round(now, 4)]
            said["score_change_error"] = round(self.scores.error, 4)
        return said

    @property
    def in_words(self) -> str:
        """Which steps are compared."""
        before, now = (when(part) for part in (self.windows.before, self.windows.now))
        return f"between {before} and {now}"


def trend(history: History) -> Trend | None:
    """None while there is too little to compare."""
    compared = windows(history)
    if compared is None:
        return None
    is_judged = are_judged(compared.all)
    return Trend(
        windows=compared,
        rewards=compared.change(reward),
        scores=compared.change(score) if is_judged else None,
        worth=worth(compared.all) if is_judged else None,
    )
