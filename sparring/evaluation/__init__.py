"""Held-out judgement: play tasks that were not trained, score them by the scorer, compare with intervals."""
