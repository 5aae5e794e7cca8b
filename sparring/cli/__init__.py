"""The `sparring` command. Heavy modules are imported inside the commands, so that `--help` answers at once."""

from sparring.cli.command import app, main

# In the order in which `--help` names them.
from sparring.cli import train, check, evaluate, stored, report, serve, runs, verify  # isort: skip

__all__ = ["app", "check", "evaluate", "main", "report", "runs", "serve", "stored", "train", "verify"]
