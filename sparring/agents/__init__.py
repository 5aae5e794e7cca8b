"""Agents run episodes: the built-in tool loop, programs, and agents written as functions."""

from sparring.agents.command import CommandAgent
from sparring.agents.environment_agent import EnvironmentAgent
from sparring.agents.function import FunctionAgent, agent
from sparring.agents.result import AgentResult

__all__ = ["AgentResult", "CommandAgent", "EnvironmentAgent", "FunctionAgent", "agent"]
