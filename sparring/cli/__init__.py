"""The `sparring` command. Heavy modules are imported inside the commands, so `--help` answers at once."""

from sparring.cli.command import app, main

# The imports are in the order in which `--help` lists the commands.
from sparring.cli import init, quickstart, bootstrap, train, settings, plan, check, control, evaluate  # isort: skip
from sparring.cli import stored, report, export, diagnose, serve, keys, worker, runs, prune, erase  # isort: skip
from sparring.cli import verify, install, doctor  # isort: skip

__all__ = [
    "app", "bootstrap", "check", "control", "diagnose", "doctor", "erase", "evaluate", "export", "init", "install", "keys",
    "main", "plan", "prune", "quickstart", "report", "runs", "serve", "settings", "stored", "train", "verify", "worker",
]  # fmt: skip
