"""Isolated execution: programs in sandboxes, SQL in memory, and arithmetic with a time limit."""

from sparring.sandbox.arithmetic import calculate
from sparring.sandbox.box import Box, Program
from sparring.sandbox.evaluator import ArithmeticProblem
from sparring.sandbox.limits import Collected, Execution, Limits
from sparring.sandbox.sandbox import Sandbox, open_sandbox
from sparring.sandbox.sql import SqlDatabase, SqlError, SqlLimits

__all__ = [
    "ArithmeticProblem", "Box", "Collected", "Execution", "Limits", "Program", "Sandbox", "SqlDatabase", "SqlError", "SqlLimits",
    "calculate", "open_sandbox",
]  # fmt: skip
