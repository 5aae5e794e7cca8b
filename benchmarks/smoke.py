"""Finds the benchmarks and their stored results, and runs small versions of the benchmarks."""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.report import CANNOT_RUN, defects

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PRELOADED = ("sparring.trainer", "sparring.evaluator", "transformers.models.llama.modeling_llama", __name__)
"""Modules that are imported once instead of once per script."""
SMOKE_SECONDS = 400
"""A benchmark that takes longer than this counts as hung."""
BUDGET_SECONDS = 480.0
"""The time that the small versions of all benchmarks may take together."""
AT_ONCE = 2
CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoke:
    """The result of a smoke run of a benchmark."""

    name: str
    code: int
    seconds: float
    processor_seconds: float
    output: str
    wrong: Sequence[str]

    @property
    def state(self) -> str:
        if self.code == CANNOT_RUN:
            return "LEFT OUT"
        return "FAILED" if self.code or self.wrong else "ok"


@cache
def scripts() -> dict[str, str]:
    """Return all benchmarks, keyed by their names after `benchmarks.`, with the first paragraph of their
    descriptions."""
    found = {}
    for file in (*HERE.glob("*.py"), *HERE.glob("*/*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        if file != HERE / "__main__.py" and any(_is_main(one) for one in tree.body):
            name = ".".join(file.relative_to(HERE).with_suffix("").parts).removesuffix(".__main__")
            found[name] = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    return dict(sorted(found.items()))


def _is_main(node: ast.stmt) -> bool:
    """Return whether a node is a `main` that returns an exit code. Helper programs of a benchmark return nothing."""
    return isinstance(node, ast.FunctionDef) and node.name == "main" and ast.unparse(node.returns or node) == "int"


def results(name: str) -> Iterator[dict[str, Any]]:
    """Yield the stored results of a benchmark."""
    for file in sorted(RESULTS.glob("*.json")):
        content = json.loads(file.read_text("utf-8"))
        if content["command"].split()[2] == f"benchmarks.{name}":
            yield content


def smoke(name: str) -> Smoke:
    """Run a small version of a benchmark in a separate process."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        here, there = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_run, args=(f"benchmarks.{name}", result, log, there))
        process.start()
        there.close()
        try:
            code, used = here.recv() if here.poll(SMOKE_SECONDS) else (1, 0.0)
        except EOFError:
            code, used = 1, 0.0
        wrong = [f"exit code {code}"] if code not in (0, CANNOT_RUN) else []
        wrong += _wrong(name, result) if code == 0 or result.exists() else []
        if time.monotonic() - began > SMOKE_SECONDS:
            wrong.append(f"it did not end within {SMOKE_SECONDS} s")
        assert process.pid is not None
        with suppress(ProcessLookupError):
            # The process leads a session, which includes all processes that it started.
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        output = log.read_text("utf-8", errors="replace") if log.exists() else ""
    return Smoke(
        name=name, code=code, seconds=time.monotonic() - began, processor_seconds=used, output=output, wrong=wrong
    )


def _run(module: str, result: Path, log: Path, pipe: Connection) -> None:
    """Run the module as a program in this process. The process cannot be used for another module afterwards."""
    os.setsid()
    with log.open("w", encoding="utf-8") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    sys.argv = [module, "--smoke", "--json", str(result)]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if isinstance(error.code, str):
            raise
        code = error.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    pipe.send((code, sum(one.ru_utime + one.ru_stime for one in used)))


def _wrong(name: str, result: Path) -> Iterator[str]:
    """Yield the defects of a smoke run's result, and the figures that the stored results lack."""
    if not result.is_file():
        yield "it wrote no result"
        return
    content = json.loads(result.read_text("utf-8"))
    if not content.get("smoke"):
        yield "report(smoke=...) was not set"
    yield from defects(content)
    for stored in results(name):
        if set(content.get("sides", {})) - set(stored["sides"]):
            continue  # The stored result covers only a part of the benchmark, for example without shuffled rewards.
        if unknown := sorted(set(content["figures"]) - set(stored["figures"])):
            yield f"figures that its stored result of {stored['date']} does not have: {', '.join(unknown)}; measure it again"


def smoke_all(names: Sequence[str], *, budget_seconds: float = BUDGET_SECONDS) -> int:
    """Run small versions of benchmarks, several at a time. Returns 1 if one failed, or if together they took longer
    than `budget_seconds`."""
    os.environ["OMP_NUM_THREADS"] = "1"
    CONTEXT.set_forkserver_preload(list(PRELOADED))
    began, done = time.monotonic(), list[Smoke]()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for future in as_completed([pool.submit(smoke, name) for name in names]):
            one = future.result()
            done.append(one)
            print(
                f"{one.state:8} {one.name:24} {one.seconds:6.1f} s, {one.processor_seconds:5.1f} of a processor",
                flush=True,
            )
            if one.state != "ok":
                print("\n".join(["", *one.output.splitlines()[-30:], *one.wrong, ""]), flush=True)
    failed = [one.name for one in done if one.state == "FAILED"]
    seconds = time.monotonic() - began
    print(
        f"{len(done)} benchmarks in {seconds:.0f} s, {sum(one.processor_seconds for one in done):.0f} of "
        f"a processor; failed: {', '.join(failed) or 'none'}"
    )
    is_late = seconds > budget_seconds
    if is_late:
        slowest = sorted(done, key=lambda one: -one.seconds)[:3]
        names_of = ", ".join(f"{one.name} ({one.seconds:.0f} s)" for one in slowest)
        print(
            f"FAILED: the smoke tests took {seconds:.0f} s, and their budget is {budget_seconds:g} s. The slowest are "
            f"{names_of}. Make them smaller, or change the budget with --budget-seconds."
        )
    return 1 if failed or is_late else 0
