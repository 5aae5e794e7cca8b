"""Environments: the base class, tools from typed methods, three patterns of environments, and scripted
demonstrations."""

from sparring.environments.base import Environment, opened
from sparring.environments.calls import ToolError, ToolResult, execute
from sparring.environments.demonstrations import (
    Segment,
    answer,
    expert_script,
    record_demonstration,
    record_segments,
    tool_call,
)
from sparring.environments.execution import ExecutionEnvironment, PythonTool, SqlTool, Verdict, graded
from sparring.environments.fixtures import FixtureMiss, Fixtures
from sparring.environments.replayed_tools import ReplayEnvironment, replayed
from sparring.environments.stateful import EpisodeClock, EpisodeState, StatefulEnvironment, normalized
from sparring.environments.tools import Bounded, tool
from sparring.environments.user_simulator import UserSimulator

__all__ = [
    "Bounded", "Environment", "EpisodeClock", "EpisodeState", "ExecutionEnvironment", "FixtureMiss", "Fixtures", "PythonTool",
    "ReplayEnvironment", "Segment", "SqlTool", "StatefulEnvironment", "ToolError", "ToolResult", "UserSimulator", "Verdict",
    "answer", "execute", "expert_script", "graded", "normalized", "opened", "record_demonstration", "record_segments",
    "replayed", "tool", "tool_call",
]  # fmt: skip
