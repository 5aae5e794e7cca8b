"""Load the agent of a recipe: the built-in tool loop or the recipe's own agent."""

from __future__ import annotations

import inspect
import os
import platform
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias, cast

from sparring.agents import AgentResult, CommandAgent, EnvironmentAgent, FunctionAgent
from sparring.agents.function import PlayFunction
from sparring.agents.http import HttpAgent, PushLimits
from sparring.agents.pull import PullAgent
from sparring.agents.result import overtime
from sparring.agents.worker import KEY_VARIABLE
from sparring.assembly.environment import load_environment
from sparring.config import Config
from sparring.config.sections import AgentSection
from sparring.environments import Environment
from sparring.errors import UsageError
from sparring.gateway import Gateway, WorkQueue
from sparring.gateway.overload import MAX_IN_FLIGHT
from sparring.rollouts import Agent
from sparring.runtime.plugins import load_object
from sparring.sessions import AnySession
from sparring.types import Task, ToolSchema
from sparring.web.audit import AuditLog
from sparring.web.gate import Gate
from sparring.web.keys import Keys
from sparring.workers import WorkerPool, run_in_workers

Step: TypeAlias = Callable[[], Awaitable[None]]


def load_agent_and_environment(
    config: Config, recipe_dir: Path, announce: Callable[[str], object], pool: WorkerPool | None
) -> tuple[Agent, Step | None, Callable[[], Environment], tuple[ToolSchema, ...]]:
    """Return the agent, a function that closes it, the environment factory and the tools.

    Only the built-in tool loop has an environment and tools. With a `pool`, the environments run in its workers.
    """
    agent, close_agent = load_agent(config, recipe_dir, announce)
    if agent is not None:
        return agent, close_agent, refuse_environment, ()
    make_environment, environment_class = load_environment(config, recipe_dir)
    if pool is not None:
        make_environment = run_in_workers(environment_class, pool)
    tool_loop = EnvironmentAgent(make_environment, max_turns=config.environment.max_turns)
    return tool_loop.play, None, make_environment, environment_class.offered_tools()


def load_agent(
    config: Config, recipe_dir: Path, announce: Callable[[str], object]
) -> tuple[Agent, Step] | tuple[None, None]:
    """Return the recipe's own agent and a function that closes the agent's resources, or None for the built-in tool
    loop.

    Raises UsageError if the named object is not an agent.
    """
    section = config.agent
    worker_key = os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(32)
    queue = WorkQueue(worker_key if section.worker_keys is None else _open_gate(section))
    gateway = Gateway(
        host=section.gateway_host,
        port=section.gateway_port,
        allowed_hosts=section.gateway_names,
        queue=queue if section.pull else None,
        max_in_flight=max(MAX_IN_FLIGHT, 4 * config.rollout.rollout_max_concurrency),
    )
    # Longer than the policy's own deadline, so that the policy's deadline applies first.
    seconds = config.rollout.rollout_timeout + overtime(config.rollout.rollout_timeout)
    pushing: HttpAgent | None = None
    if section.function is not None:
        found = load_object(section.function, folder=recipe_dir)
        if not isinstance(found, FunctionAgent) and (inspect.isclass(found) or not callable(found)):
            raise UsageError(
                f"agent.function = {section.function!r} is {found!r}; write a function `play(task, session)`, async or not, "
                "which returns the reward or an AgentReport."
            )
        function = found if isinstance(found, FunctionAgent) else FunctionAgent(cast(PlayFunction, found))
        agent: Agent = function.entering(gateway.register).play
    elif section.command is not None:
        agent = CommandAgent(
            section.command, enter=gateway.register, folder=recipe_dir, variables=section.variables
        ).play
    elif section.url is not None:
        pushing = HttpAgent(
            section.url,
            gateway=gateway,
            limits=PushLimits(
                timeout_seconds=seconds,
                max_retries=config.rollout.rollout_max_retries,
                max_concurrency=config.rollout.rollout_max_concurrency,
                tps_limit=section.tps_limit,
            ),
        )
        agent = pushing.play
    elif section.pull:
        agent = PullAgent(
            queue,
            gateway=gateway,
            timeout_seconds=seconds,
            max_retries=config.rollout.rollout_max_retries,
        ).play
    else:
        return None, None
    is_announced = not section.pull

    async def play(task: Task, session: AnySession) -> AgentResult:
        nonlocal is_announced
        await gateway.start()
        if not is_announced:
            is_announced = True
            shown = worker_key if section.worker_keys is None else None
            announce(_call_for_workers(gateway.base_url.removesuffix("/v1"), shown))
        return await agent(task, session)

    async def aclose() -> None:
        await gateway.stop()
        if pushing is not None:
            await pushing.aclose()

    return play, aclose


def _open_gate(section: AgentSection) -> Gate:
    """Return the gate for workers with keys by name. Raises UsageError if the keys or the log cannot be used."""
    assert section.worker_keys is not None
    audit = None if section.audit_log is None else AuditLog(Path(section.audit_log))
    return Gate("queue", Keys.of_file(Path(section.worker_keys)), audit=audit)


def _call_for_workers(address: str, key: str | None) -> str:
    """Return the instructions to start workers. A key that the user has set in an environment variable is not shown.
    Without `key`, each worker has its own."""
    address = address.replace("//0.0.0.0:", f"//{platform.node()}:")
    shown = f"${KEY_VARIABLE}" if key is None or os.environ.get(KEY_VARIABLE) else key
    return (
        f"episodes wait for workers at {address}; start workers on any machine that can reach this address:\n"
        f"  {KEY_VARIABLE}={shown} python -m sparring.agents.worker {address} MODULE:FUNCTION"
    )


def refuse_environment() -> Environment:
    raise UsageError(
        "[agent] sets an agent that has its own environment, so this recipe has no environment to run; remove the agent "
        "from [agent] and set environment.target to use the built-in tool loop."
    )
