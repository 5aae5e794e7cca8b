"""Open, self-hosted multi-turn reinforcement learning for language-model agents.

The public names are loaded on first use: `import sparring` imports neither torch nor any other large library.

    from sparring import Environment, MultiTurnRLTrainer, Task, tool
"""

from __future__ import annotations

import importlib

# Maps each public name to its definition, as `module:attribute`. `__init__.pyi` declares the same names for type
# checkers.
_PUBLIC = {
    "AgentReport": "sparring.types:AgentReport",
    "Environment": "sparring.environments.base:Environment",
    "Message": "sparring.types:Message",
    "MultiTurnRLEvaluator": "sparring.evaluator:MultiTurnRLEvaluator",
    "MultiTurnRLTrainer": "sparring.trainer:MultiTurnRLTrainer",
    "Reward": "sparring.types:Reward",
    "Run": "sparring.run:Run",
    "Score": "sparring.types:Score",
    "StatefulEnvironment": "sparring.environments.stateful:StatefulEnvironment",
    "Task": "sparring.types:Task",
    "Trajectory": "sparring.types:Trajectory",
    "agent": "sparring.agents.function:agent",
    "answer": "sparring.environments.demonstrations:answer",
    "check": "sparring.checks.running.run:check_recipe",
    "export": "sparring.serving.export:export",
    "record_demonstration": "sparring.environments.demonstrations:record_demonstration",
    "serve": "sparring.serving.serve:serve",
    "tool": "sparring.environments.tools:tool",
    "tool_call": "sparring.environments.demonstrations:tool_call",
}

__all__ = list(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sparring' has no attribute {name!r}; its public names are {', '.join(__all__)}.")
    module, attribute = _PUBLIC[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
