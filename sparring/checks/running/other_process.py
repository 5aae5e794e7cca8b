"""Ask a module of this package in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sparring.checks.running.time_budget import TimedOutError, UndecidedError
from sparring.environments.base import CLOSE_SECONDS
from sparring.types import Json

SEED_VARIABLE = "PYTHONHASHSEED"
OTHER_HASH_SEED = "4321"


async def ask_other_process(module: str, request: Json, *, limit: float, variables: Mapping[str, str]) -> Any:
    """Start `module` with this process's paths, send the request as a line of JSON, and return the line that it answers.

    `variables` change the environment of the process. It gets SIGINT if this call is cancelled, and its whole group ends
    with the call. Raises TimedOutError after `limit` seconds, and UndecidedError if the process ends without an answer.
    """
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with tempfile.TemporaryFile() as errors:
        # The process has its own process group, so that its children end with it. Otherwise, they could keep its pipe open.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": paths, **variables},
            start_new_session=True,
            limit=1 << 26,
        )
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(limit):
                line = await process.stdout.readline()
        except TimeoutError:
            raise TimedOutError(f"another process did not finish the episodes within {limit:.3g} s") from None
        except asyncio.CancelledError:
            process.send_signal(signal.SIGINT)  # on SIGINT, the process closes what the running episode uses
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), CLOSE_SECONDS)
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if line:
            return json.loads(line)
        code = process.returncode or 0
        how = f"terminated by signal {-code}" if code < 0 else f"exit code {code}"
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise UndecidedError(f"another process could not run the episodes ({how}). Its last output was: {last[0]}")
