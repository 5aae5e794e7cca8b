"""Check a recipe. Its code runs in a separate process, which is replaced if it hangs or crashes."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from sparring import errors
from sparring.checks import CHECKS
from sparring.checks.check import Check
from sparring.checks.running.accept import accept, refuse_unknown_checks
from sparring.checks.running.check_report import Checked, CheckReport
from sparring.checks.running.deadlines import read_note
from sparring.checks.running.time_budget import (
    CALL_SECONDS,
    MOST_STRETCHED,
    REVIEW_SECONDS,
    START_SECONDS,
    TOTAL_SECONDS,
    VERDICT_SECONDS,
    VERDICTS_SECONDS,
)
from sparring.config import load_config
from sparring.errors import SparringError, UsageError
from sparring.findings import Finding, Severity
from sparring.runtime.interrupts import STOP_SECONDS
from sparring.runtime.keeper import wrap_in_keeper
from sparring.types import Json

MODEL_SECONDS = 1800.0
_LOAD_SECONDS = 45.0
"""The seconds for importing and loading without the model, per minute of the check."""
_MAX_PROCESSES = 8
_USED_UP = "the time for the whole check was used up"
_END_SECONDS = 5.0
"""The seconds in which a keeper (`sparring.runtime.keeper`) terminates all child processes, and in which a rule stops
after its time limit."""

OnRule = Callable[[str], object]
Announce = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a check; the worker receives their values as JSON."""

    overrides: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    """The families of rules to run. If it is empty, all families run."""
    model: bool = False
    production: Path | None = None
    schemas: Path | None = None
    reference: tuple[str, ...] = ()
    reviewer: str | None = None
    """The address of the model that reviews the recipe, `URL#MODEL`."""
    run: Path | None = None
    minutes: float = 1.0
    """The time for the check without the model. The limits of single calls are proportional to it."""


def check_recipe(
    recipe: str | Path,
    options: Options | None = None,
    *,
    on_rule: OnRule = lambda _: None,
    announce: Announce = lambda _: None,
) -> CheckReport:
    """Check a recipe before it is trained, and return the report with all findings. The call blocks for up to
    `options.minutes`.

    `recipe` is a folder or its `recipe.toml`. `on_rule` is called with the name of each rule that starts. `announce` is
    called with a message that a person should read first, such as the cost of an LLM judge.

    Raises UsageError, DataError or ServiceError if the recipe cannot be loaded.
    """
    options = options or Options()
    recipe = Path(recipe)
    recipe = recipe / "recipe.toml" if recipe.is_dir() else recipe
    config = load_config(recipe, options.overrides)
    if "agent" in options.families and not config.agent.is_foreign:
        raise UsageError(
            f"{recipe} has an environment, and the checks of --only agent are for agents of your own ([agent]); use "
            "--only environment."
        )
    rules = [one for one in selected(options) if one.family != "agent" or config.agent.is_foreign or options.families]
    refuse_unknown_checks(config, recipe)
    total = TOTAL_SECONDS * options.minutes + (MODEL_SECONDS if options.model else 0.0)
    began = time.monotonic()
    with _private_folder() as folder:
        run = _Run(recipe.resolve(), options, folder, seconds=total, on_rule=on_rule, announce=announce)
        run.run_rules(rules)
    findings = [*run.findings, *undecided(run.checked), *left_out(run.checked, options.minutes)]
    findings = accept(findings, config.checks.accept)
    return CheckReport.of(str(recipe), findings, run.checked, seconds=time.monotonic() - began, measured=run.measured)


def selected(options: Options) -> list[Check]:
    """Return the checks of the families in the options, or all checks if there are no families. Raises UsageError for
    an unknown family."""
    families = tuple(dict.fromkeys(one.family for one in CHECKS.values()))
    chosen = ["baseline" if family == "foothold" else family for family in options.families]  # the name before 0.1.0
    for family in chosen:
        if family not in families:
            raise UsageError(f"--only {family} is not a family of checks. The families are {', '.join(families)}.")
    return [one for one in CHECKS.values() if not chosen or one.family in chosen]


def undecided(checked: Sequence[Checked]) -> Iterator[Finding]:
    """Yield one finding for each reason why rules could not be decided."""
    by_cause: dict[str, list[Checked]] = {}
    for one in checked:
        if one.state == "undecided":
            # Reasons with the same cause may name different tasks.
            by_cause.setdefault(re.sub(r"([Tt]ask) \S+", r"\1", str(one.reason)), []).append(one)
    for same in by_cause.values():
        reason, names = same[0].reason, [one.name for one in same]
        yield Finding(
            rule=names[0],
            severity=Severity.ERROR,
            symptom=f"{names[0]} could not be decided: {reason}",
            evidence={"reason": reason, "undecided": names},
            change="Correct the cause that the reason states. Until then, these rules cannot check the recipe.",
            confirm="Run `sparring check` again: the rules named in the evidence are decided.",
        )


def left_out(checked: Sequence[Checked], minutes: float) -> Iterator[Finding]:
    """Yield one note that lists the rules left out for lack of time, and those that used fewer episodes."""
    names = [one.name for one in checked if one.state == "left_out"]
    cut = [one.name for one in checked if one.state == "decided" and one.reason is not None]
    if names or cut:
        reason = next((one.reason for one in checked if one.state == "left_out"), None)
        yield Finding(
            rule=(names or cut)[0],
            severity=Severity.NOTE,
            symptom=f"for lack of time, {len(names)} rules were left out and {len(cut)} used fewer episodes"
            + (f": {reason}." if reason else "."),
            evidence={"left_out": names, "on_fewer_episodes": cut, "minutes": minutes},
            change=f"Give the check more time, for example with --minutes {max(2, round(minutes * 5))}, or make "
            f"episodes start faster.",
            confirm="Run `sparring check` again: no rule is left out.",
        )


def _raise_refusal(line: Mapping[str, Any]) -> None:
    """Raise the error that a line of the worker reports, if any."""
    if "refused" in line:
        kind = getattr(errors, line["kind"], SparringError)
        error = SparringError.__new__(kind)
        Exception.__init__(error, line["refused"])
        raise error


@contextmanager
def _private_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sparring-check-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@final
@dataclass(kw_only=True)
class _Stopped(Exception):
    """A worker ended before its work was done."""

    reason: str


@final
class _Run:
    """Runs the rules one after another, in as many processes as necessary."""

    def __init__(
        self, recipe: Path, options: Options, folder: Path, *, seconds: float, on_rule: OnRule, announce: Announce
    ) -> None:
        self.findings: list[Finding] = []
        self.checked: list[Checked] = []
        self.measured: Mapping[str, Json] = {}
        self._recipe, self._options, self._folder = recipe, options, folder
        self._began, self._seconds, self._on_rule = time.monotonic(), seconds, on_rule
        self._review_seconds = 0.0 if options.reviewer is None else REVIEW_SECONDS
        self._deadline = self._began + seconds + self._review_seconds
        self._announce = announce
        self._announced: set[str] = set()

    def run_rules(self, rules: Sequence[Check]) -> None:
        left = {one.name: one for one in rules}
        for _ in range(_MAX_PROCESSES):
            with suppress(_Stopped):
                self._run_worker(left)
            if not left or time.monotonic() > self._deadline:
                break
        for name in left:
            self.checked.append(Checked(name=name, state="left_out", reason=_USED_UP))

    def _run_worker(self, left: dict[str, Check]) -> None:
        """Run rules in one process, and remove each from `left` as it ends. Raises _Stopped if the process ends
        early."""
        with _Worker(self._request(list(left)), self._folder) as worker:
            loading = MODEL_SECONDS if self._options.model else _LOAD_SECONDS * self._options.minutes
            try:
                line = worker.line(until=min(self._deadline, time.monotonic() + loading))
            except _Stopped as stopped:
                raise UsageError(
                    f"{self._recipe} could not be loaded: {stopped.reason}. Code that a recipe names must be "
                    f"importable, and its calls must return. Correct this and try again."
                ) from None
            _raise_refusal(line)
            slowness, waited = line["slowness"], 0.0
            if line["announced"] is not None:
                waited = VERDICTS_SECONDS * self._options.minutes
                if line["announced"] not in self._announced:
                    self._announced.add(line["announced"])
                    self._announce(line["announced"])
            longest_check = self._seconds * min(MOST_STRETCHED, slowness) + waited + self._review_seconds
            self._deadline = max(self._deadline, self._began + longest_check)
            while left:
                name = worker.line(until=self._deadline + _END_SECONDS)["begin"]
                self._on_rule(name)
                began = time.monotonic()
                try:
                    # The process limits its own time. If a call never returns, the process is ended here.
                    longest = max(left[name].seconds, START_SECONDS + CALL_SECONDS) * self._options.minutes + waited
                    end = worker.line(until=min(self._deadline + _END_SECONDS, began + longest * slowness))
                except _Stopped as stopped:
                    took = time.monotonic() - began
                    is_late = time.monotonic() >= self._deadline and took < longest * slowness
                    state, reason = ("left_out", _USED_UP) if is_late else ("undecided", stopped.reason)
                    self.checked.append(Checked(name=name, state=state, seconds=took, reason=reason))
                    raise
                finally:
                    del left[name]
                _raise_refusal(end)
                self.findings += [Finding(**{**one, "severity": Severity(one["severity"])}) for one in end["findings"]]
                self.checked.append(Checked(**end["checked"]))
            self.measured = worker.line(until=self._deadline + _END_SECONDS)["measured"]

    def _request(self, names: Sequence[str]) -> dict[str, Json]:
        options = self._options
        return {
            "recipe": str(self._recipe),
            "overrides": list(options.overrides),
            "rules": list(names),
            "note": str(self._folder / "call"),
            "call_seconds": CALL_SECONDS * options.minutes,
            "start_seconds": START_SECONDS * options.minutes,
            "verdict_seconds": VERDICT_SECONDS * options.minutes,
            "verdicts_seconds": VERDICTS_SECONDS * options.minutes,
            "began": time.monotonic(),
            "seconds": self._deadline - self._review_seconds - time.monotonic(),
            "model": options.model,
            "given": {
                "production": None if options.production is None else str(options.production),
                "schemas": None if options.schemas is None else str(options.schemas),
                "reference": list(options.reference),
                "reviewer": options.reviewer,
                "run": None if options.run is None else str(options.run),
            },
        }


@final
class _Worker:
    """A process that receives one request and answers with JSON lines."""

    def __init__(self, request: Mapping[str, Json], folder: Path) -> None:
        self._note = Path(str(request["note"]))
        self._note.write_bytes(b"")
        self._errors = folder / "stderr"
        temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder))
        # The keeper ends the process with all its child processes. The private temporary folder is removed with
        # everything in it.
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        arguments, environment = wrap_in_keeper(
            [sys.executable, "-P", "-m", "sparring.checks.running.worker"],
            {**os.environ, "TMPDIR": str(temporary), "PYTHONHASHSEED": "0", "PYTHONPATH": path},
        )
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env=environment,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.close()
        self._out = self._process.stdout
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None and issubclass(kind, KeyboardInterrupt):
                self._close_environments()
        finally:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._selector.close()
            self._out.close()

    def _close_environments(self) -> None:
        """Interrupt the process so that it closes its episodes, and wait for its end. A second interrupt ends the
        wait."""
        self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)

    def line(self, *, until: float) -> dict[str, Any]:
        """Return the next line. Raises _Stopped if the process ends, or writes no line before `until`."""
        while b"\n" not in self._buffer:
            remaining = until - time.monotonic()
            if remaining <= 0 or not self._selector.select(remaining):
                raise _Stopped(reason=f"no result came back in time{self._running_call()}")
            chunk = os.read(self._out.fileno(), 1 << 16)
            if not chunk:
                code = self._process.wait()
                how = f"was terminated by signal {-code}" if code < 0 else f"exited with exit code {code}"
                raise _Stopped(reason=f"the process {how}{self._running_call()}{self._last_error_line()}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _running_call(self) -> str:
        what = read_note(self._note)
        return f"; {what} was running" if what else ""

    def _last_error_line(self) -> str:
        lines = self._errors.read_bytes().decode(errors="replace").strip().splitlines()
        return f"; its last line was {lines[-1]!r}" if lines else ""
