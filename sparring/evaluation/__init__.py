"""Held-out evaluation: running tasks that were not used for training, grading them with the scorer, and comparing
policies with confidence intervals."""
