"""Limits of a recipe that truncate turns during training."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sparring.detectors.evidence import latest, named, steps_of, when
from sparring.findings import Finding, Severity
from sparring.run_folders.history import History

MOST_CUT = 0.05
"""The share of turns that may be cut at the token limit."""
NUM_STEPS = 3
FEWEST_TURNS = 10


def turns_cut(history: History) -> Iterable[Finding]:
    """Warn if more than 5 % of the turns in the last three steps were truncated at the token limit, in the middle of a
    call or an answer."""
    episodes = latest(history, NUM_STEPS)
    num_turns = sum(one.digest.num_turns for one in episodes)
    cut = [one for one in episodes if one.digest.num_cut]
    if num_turns < FEWEST_TURNS:
        return
    share = sum(one.digest.num_cut for one in cut) / num_turns
    error = math.sqrt(share * (1 - share) / num_turns)
    if share - 2 * error <= MOST_CUT:
        return
    yield Finding(
        rule="budgets.turns_cut",
        severity=Severity.WARNING,
        symptom=f"{share:.0%} of the turns of {when(episodes)} were cut at sampling.sampling_max_tokens, in the "
        "middle of a call or an answer.",
        evidence={"steps": steps_of(episodes), "share": round(share, 4), "turns": num_turns},
        change="Double sampling.sampling_max_tokens, or request shorter turns in the prompt.",
        confirm="rollout/truncated_turns falls below 0.05.",
        step=history.last_step,
        trajectories=named(cut),
    )
