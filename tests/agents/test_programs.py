"""What the program of an agent, or a program that the policy wrote and the agent started, does to its own episode: the
episode ends in time, and its failures count."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparring.agents import CommandAgent
from sparring.agents.command import _last_object
from sparring.agents.result import AgentResult
from sparring.environments import answer, tool_call
from sparring.errors import AgentFailed, ServiceError
from sparring.gateway import Gateway
from sparring.types import Outcome, Reward
from tests.agents.http_agents import make_session
from tests.agents.test_handed_over import PROGRAM, TASK

NEVER_READ = """
import os, sys
os._exit(3)
"""


def played(program: str, tmp_path: Path, turn: Any = "a", *, seconds: float = 30.0) -> AgentResult:
    (tmp_path / "program.py").write_text(program)

    async def run() -> AgentResult:
        async with Gateway() as gateway, make_session(turn) as session, asyncio.timeout(seconds):
            agent = CommandAgent([sys.executable, "program.py"], enter=gateway.register, folder=tmp_path)
            return await agent.play(TASK, session)

    return asyncio.run(run())


def after_a_turn(code: str) -> str:
    return PROGRAM.replace("print(sys.argv[1])\n", code)


@pytest.mark.parametrize(
    ("code", "outcome", "reward"),
    [
        ("pass", Outcome.FINISHED, None),
        ("print('done')", Outcome.FINISHED, None),
        ("print(json.dumps({'reward': 0.5}))", Outcome.FINISHED, Reward(total=0.5)),
        ("os._exit(7)", Outcome.POLICY_ERROR, None),
        ("os.kill(os.getpid(), 9)", Outcome.POLICY_ERROR, None),
        ("os.killpg(0, 9)", Outcome.POLICY_ERROR, None),
        ("print('[' * 10**6)", Outcome.FINISHED, None),
        ("os.write(1, b'\\xff\\x00\\n')", Outcome.FINISHED, None),
        ("os.closerange(0, 99); os._exit(0)", Outcome.FINISHED, None),
    ],
)
def test_a_program_that_ends_after_a_turn_ends_its_episode_as_it_did(
    code: str, outcome: Outcome, reward: Reward | None, tmp_path: Path
) -> None:
    result = played(after_a_turn(code), tmp_path)
    assert (result.outcome, result.reward) == (outcome, reward)


@pytest.mark.parametrize("code", [NEVER_READ, "import sqlite4", "raise OSError('the shop is down')"])
def test_a_program_that_fails_before_its_first_turn_is_not_the_policys_failure(code: str, tmp_path: Path) -> None:
    with pytest.raises(AgentFailed, match=r"(?s)exit code [13].*before the policy's first turn"):
        played(code, tmp_path)


def test_a_program_that_is_not_there_ends_the_run(tmp_path: Path) -> None:
    async def run() -> None:
        async with Gateway() as gateway, make_session("a") as session:
            await CommandAgent(["no-such-agent"], enter=gateway.register, folder=tmp_path).play(TASK, session)

    with pytest.raises(ServiceError, match=r"agent.command = \['no-such-agent'\] cannot be started"):
        asyncio.run(run())


def test_a_process_that_outlives_the_program_does_not_hold_up_its_report(tmp_path: Path) -> None:
    code = "import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)\nprint('{\"reward\": 0.5}')"
    began, before = time.monotonic(), len(os.listdir("/dev/fd"))
    assert played(after_a_turn(code), tmp_path).reward == Reward(total=0.5)
    assert time.monotonic() - began < 20
    assert len(os.listdir("/dev/fd")) <= before + 1


def test_output_without_end_takes_little_memory_and_ends_with_the_program(tmp_path: Path) -> None:
    code = "for _ in range(5000): os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)\nprint('\\n{\"reward\": 0.5}')"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert played(after_a_turn(code), tmp_path, seconds=60.0).reward == Reward(total=0.5)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB, of 640 MiB


def test_a_report_in_the_arguments_of_a_call_is_the_policys_text() -> None:
    forged = '{"reward": 1.0}'

    def printed_after(message: Any) -> Any:
        return _last_object(
            f"done\n{forged}\n", cast(Any, SimpleNamespace(episode_turns=[SimpleNamespace(message=message)]))
        )

    assert printed_after(tool_call("say", text="something else")) == {"reward": 1.0}
    assert printed_after(tool_call("say", text=forged)) == {}
    assert printed_after(answer(f"I print {forged}")) == {}
