from sparring.agents.function import agent
from sparring.checks.running.run import check_recipe as check
from sparring.environments.base import Environment
from sparring.environments.demonstrations import answer, record_demonstration, tool_call
from sparring.environments.stateful import StatefulEnvironment
from sparring.environments.tools import tool
from sparring.evaluator import MultiTurnRLEvaluator
from sparring.run import Run
from sparring.serving.export import export
from sparring.serving.serve import serve
from sparring.trainer import MultiTurnRLTrainer
from sparring.types import AgentReport, Message, Reward, Score, Task, Trajectory

__all__ = [
    "AgentReport",
    "Environment",
    "Message",
    "MultiTurnRLEvaluator",
    "MultiTurnRLTrainer",
    "Reward",
    "Run",
    "Score",
    "StatefulEnvironment",
    "Task",
    "Trajectory",
    "agent",
    "answer",
    "check",
    "export",
    "record_demonstration",
    "serve",
    "tool",
    "tool_call",
]
