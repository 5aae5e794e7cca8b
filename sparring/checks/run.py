"""Check a recipe: its code runs in a process of its own, which is watched, and replaced when it hangs or dies."""

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
from sparring.checks.registry import Check
from sparring.checks.report import Checked, CheckReport
from sparring.checks.timing import (
    CALL_SECONDS,
    MOST_STRETCHED,
    START_SECONDS,
    TOTAL_SECONDS,
    VERDICT_SECONDS,
    VERDICTS_SECONDS,
)
from sparring.checks.watch import read_note
from sparring.errors import SparringError, UsageError
from sparring.findings import Finding, Severity
from sparring.interrupts import STOP_SECONDS
from sparring.keeper import kept
from sparring.types import Json

MODEL_SECONDS = 1800.0
_LOAD_SECONDS = 45.0
"""What importing and loading may take for each minute of the check, model apart."""
_MAX_PROCESSES = 8
_USED_UP = "the time for the whole check was used up"
_END_SECONDS = 5.0
"""How long a keeper may take to end what it keeps, and a rule to end after its time."""

OnRule = Callable[[str], object]
Announce = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a person asked for beside the recipe; the values go to the worker as JSON."""

    overrides: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    """Only these, all when empty."""
    model: bool = False
    production: Path | None = None
    schemas: Path | None = None
    reference: tuple[str, ...] = ()
    run: Path | None = None
    minutes: float = 1.0
    """What the check may take, model apart; limits of single calls grow with it."""


def check_recipe(
    recipe: Path,
    options: Options | None = None,
    *,
    on_rule: OnRule = lambda _: None,
    announce: Announce = lambda _: None,
) -> CheckReport:
    """All findings on a recipe; blocks. `on_rule` is called with the name of each rule that begins, `announce` with what a
    person should read before rules are asked: that a model judges, which costs something.

    Raises UsageError, DataError or ServiceError for what cannot be loaded, as loading does.
    """
    options = options or Options()
    recipe = recipe / "recipe.toml" if recipe.is_dir() else recipe
    rules = selected(options)
    total = TOTAL_SECONDS * options.minutes + (MODEL_SECONDS if options.model else 0.0)
    began = time.monotonic()
    with _private_folder() as folder:
        run = _Run(recipe.resolve(), options, folder, seconds=total, on_rule=on_rule, announce=announce)
        run.play(rules)
    findings = [*run.findings, *undecided(run.checked), *left_out(run.checked, options.minutes)]
    return CheckReport.of(str(recipe), findings, run.checked, seconds=time.monotonic() - began, measured=run.measured)


def selected(options: Options) -> list[Check]:
    """The checks that the options ask for. Raises UsageError for a family that does not exist."""
    families = tuple(dict.fromkeys(one.family for one in CHECKS.values()))
    for family in options.families:
        if family not in families:
            raise UsageError(f"--only {family} names no family of checks; there are {', '.join(families)}.")
    return [one for one in CHECKS.values() if not options.families or one.family in options.families]


def undecided(checked: Sequence[Checked]) -> Iterator[Finding]:
    """One finding for each reason why rules could not be decided."""
    by_cause: dict[str, list[Checked]] = {}
    for one in checked:
        if one.state == "undecided":
            # The same cause shows with other tasks, too.
            by_cause.setdefault(re.sub(r"([Tt]ask) \S+", r"\1", str(one.reason)), []).append(one)
    for same in by_cause.values():
        reason, names = same[0].reason, [one.name for one in same]
        yield Finding(
            rule=names[0],
            severity=Severity.ERROR,
            symptom=f"{names[0]} could not be decided: {reason}",
            evidence={"reason": reason, "undecided": names},
            change="Put right what the reason names; until then these rules say nothing about the recipe.",
            confirm="Run `sparring check` again: the rules named in the evidence are decided.",
        )


def left_out(checked: Sequence[Checked], minutes: float) -> Iterator[Finding]:
    """One note that names the rules for which there was no time, and those that looked at less."""
    names = [one.name for one in checked if one.state == "left_out"]
    cut = [one.name for one in checked if one.state == "decided" and one.reason is not None]
    if names or cut:
        reason = next((one.reason for one in checked if one.state == "left_out"), None)
        yield Finding(
            rule=(names or cut)[0],
            severity=Severity.NOTE,
            symptom=f"for want of time {len(names)} rules were left out and {len(cut)} looked at fewer episodes"
            + (f": {reason}." if reason else "."),
            evidence={"left_out": names, "on_fewer_episodes": cut, "minutes": minutes},
            change=f"Give the check more time, with --minutes {max(2, round(minutes * 5))} say; or make `reset` faster.",
            confirm="Run `sparring check` again: no rule is left out.",
        )


def _raise_refusal(line: Mapping[str, Any]) -> None:
    """Raise the error with which a process gave up, if this line reports one."""
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
    """A worker that ended, or was ended, before its work was done."""

    reason: str


@final
class _Run:
    """Asks rule after rule, in as many processes as it takes."""

    def __init__(
        self, recipe: Path, options: Options, folder: Path, *, seconds: float, on_rule: OnRule, announce: Announce
    ) -> None:
        self.findings: list[Finding] = []
        self.checked: list[Checked] = []
        self.measured: Mapping[str, Json] = {}
        self._recipe, self._options, self._folder = recipe, options, folder
        self._began, self._seconds, self._on_rule = time.monotonic(), seconds, on_rule
        self._deadline = self._began + seconds
        self._announce = announce
        self._announced: set[str] = set()

    def play(self, rules: Sequence[Check]) -> None:
        left = {one.name: one for one in rules}
        for _ in range(_MAX_PROCESSES):
            with suppress(_Stopped):
                self._ask(left)
            if not left or time.monotonic() > self._deadline:
                break
        for name in left:
            self.checked.append(Checked(name=name, state="left_out", reason=_USED_UP))

    def _ask(self, left: dict[str, Check]) -> None:
        """One process: takes rules out of `left` as they are decided. Raises _Stopped when it ended too early."""
        with _Worker(self._request(list(left)), self._folder) as worker:
            loading = MODEL_SECONDS if self._options.model else _LOAD_SECONDS * self._options.minutes
            try:
                line = worker.line(until=min(self._deadline, time.monotonic() + loading))
            except _Stopped as stopped:
                raise UsageError(
                    f"{self._recipe} could not be loaded: {stopped.reason}. Code that a recipe names must be importable and "
                    "return; put that right and try again."
                ) from None
            _raise_refusal(line)
            slowness, waited = line["slowness"], 0.0
            if line["announced"] is not None:
                waited = VERDICTS_SECONDS * self._options.minutes
                if line["announced"] not in self._announced:
                    self._announced.add(line["announced"])
                    self._announce(line["announced"])
            longest_check = self._seconds * min(MOST_STRETCHED, slowness) + waited
            self._deadline = max(self._deadline, self._began + longest_check)
            while left:
                name = worker.line(until=self._deadline + _END_SECONDS)["begin"]
                self._on_rule(name)
                began = time.monotonic()
                try:
                    # The process keeps to the time itself, unless a call never comes back: then it is ended from here.
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
            "seconds": self._deadline - time.monotonic(),
            "model": options.model,
            "given": {
                "production": None if options.production is None else str(options.production),
                "schemas": None if options.schemas is None else str(options.schemas),
                "reference": list(options.reference),
                "run": None if options.run is None else str(options.run),
            },
        }


@final
class _Worker:
    """A process that gets a request, and its lines."""

    def __init__(self, request: Mapping[str, Json], folder: Path) -> None:
        self._note = Path(str(request["note"]))
        self._note.write_bytes(b"")
        self._errors = folder / "stderr"
        temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder))
        # Under a keeper, so that what it starts ends with it; its own folder, so that what it leaves is seen and removed.
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        arguments, environment = kept(
            [sys.executable, "-P", "-m", "sparring.checks.worker"],
            {**os.environ, "TMPDIR": str(temporary), "PYTHONHASHSEED": "0", "PYTHONPATH": path},
        )
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                env=environment,
            )  # fmt: skip
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
        """Have the process give up what it plays, and wait until it has ended. Interrupted again, it is not waited for."""
        self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)

    def line(self, *, until: float) -> dict[str, Any]:
        """The next line. Raises _Stopped when the process ends, or says nothing until then."""
        while b"\n" not in self._buffer:
            remaining = until - time.monotonic()
            if remaining <= 0 or not self._selector.select(remaining):
                raise _Stopped(reason=f"nothing came back in time{self._under_way()}")
            chunk = os.read(self._out.fileno(), 1 << 16)
            if not chunk:
                code = self._process.wait()
                how = f"was ended by signal {-code}" if code < 0 else f"ended itself with exit code {code}"
                raise _Stopped(reason=f"the process {how}{self._under_way()}{self._last_words()}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _under_way(self) -> str:
        what = read_note(self._note)
        return f"; under way was {what}" if what else ""

    def _last_words(self) -> str:
        lines = self._errors.read_bytes().decode(errors="replace").strip().splitlines()
        return f"; its last line was {lines[-1]!r}" if lines else ""
