"""Environments: the base class, tools from typed methods, and scripted demonstrations."""

from sparring.environments.base import Environment, opened
from sparring.environments.calls import ToolError, ToolResult, execute
from sparring.environments.demonstrations import answer, record_demonstration, tool_call
from sparring.environments.execution import ExecutionEnvironment, PythonTool, SqlTool, Verdict, graded
from sparring.environments.tools import tool
from sparring.environments.user_simulator import UserSimulator

__all__ = [
    "Environment", "ExecutionEnvironment", "PythonTool", "SqlTool", "ToolError", "ToolResult", "UserSimulator", "Verdict",
    "answer", "execute", "graded", "opened", "record_demonstration", "tool", "tool_call",
]  # fmt: skip
