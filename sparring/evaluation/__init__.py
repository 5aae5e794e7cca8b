"""Held-out evaluation: run tasks that were not trained on, grade them with the scorer, and compare policies with
intervals."""
