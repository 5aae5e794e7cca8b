"""Damages recipes, data sets, run folders and command lines at random, and runs commands on them.

Most commands run in this process, and `--commands` as real ones, with a terminal as standard input that stays silent.
Each must end within 10 s, with an exit code that docs/commands.md has for the input of a user, an error of less than 4 kB, and
no traceback or control character in its output. Cases are numbered, so that `--seed 0 --first 400 --cases 200` repeats a part of
a longer run, and `--first 417 --cases 1` a case that failed."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import tomli_w
from pyarrow import parquet
from typer.testing import CliRunner

from benchmarks.report import options, report
from sparring.cli import app
from sparring.evaluator import MultiTurnRLEvaluator
from sparring.runtime.terminal import visible
from sparring.trainer import MultiTurnRLTrainer

ROOT = Path(__file__).parents[1]
MOST_SECONDS, MOST_BYTES = 10.0, 4000
TARGETS = {
    "wrong ends": {"at_most": 0.0},
    "slowest command, s": {"at_most": MOST_SECONDS},
    "longest error, bytes": {"at_most": float(MOST_BYTES)},
}
PIECES = [
    b"\0", b"\\u0000", b"\\ud800", b"\xff\xfe", b"\x1b[2J", b"\r", b"\n", b"\xe2\x80\xae", b'"', b"'", b"[", b"]]", b"{", b"}",
    b"=", b",", b":", b"#", b"null", b"true", b"NaN", b"-1", b"1e999", b"9" * 5000, b"[" * 3000, b"{\"a\":" * 3000, b"a." * 200,
    b"x" * 5000, b"../../etc/passwd", b"/", b"~", b"%s", b"\xf0\x9f\x92\xa5",
]  # fmt: skip
"""What is put into the bytes of a file or the characters of a word."""
WORDS = [
    "", " ", "-", "--", "---", "-x", "--unknown", "--json", "--help", "--name", "\0", "a\0b", "\x1b[2J", "a\nb", "\u202e",
    "\udcff", "x" * 256, "x" * 5000, "\U0001f4a5" * 100, "a/b", "..", "../x", "/dev/null/x", ".", "~", "%s", "$(id)", "*", "-1",
    "0", "1e999", "nan", "inf", "true", "9" * 5000, "[" * 3000, "=", "a=", "=a", "batch.group_size=",
    "batch.group_size=" + "9" * 500,
    "a." * 3000 + "a=1", "batch.group_size=" + "[" * 3000, "model.name=\x1b[2J", "run@", "run@best", "run@-1", "run@" + "9" * 30,
    "@", "openai:m@http://127.0.0.1:9", "expert", "constant:", "script:", "hf://", "s3://", "file://", "http://[",
    "H100:" + "9" * 30, ":",
]  # fmt: skip
"""What takes the place of a word of a command line, or is added to it."""
VALUES: Sequence[Callable[[], Any]] = [
    *(functools.partial(copy.deepcopy, value) for value in (
        None, True, 0, -1, 2**31, 10**40, 1e308, 0.5, "", " ", "x" * 5000, "a\0b", "\x1b[2J", "\u202e", "../../x", "a:b", "1",
        [], {}, [[]],
        {"a": 1}, [1, "a", None], [0] * 3000, ["x"] * 3000, [{"role": "user"}],
    )),
    lambda: functools.reduce(lambda inner, _: [inner], range(45), []),
    lambda: functools.reduce(lambda inner, _: {"a": inner}, range(150), {}),
]  # fmt: skip
"""What takes the place of a value in a file that stays valid."""
NAMES = ("a", "a.b", "\x1b[2J", "", "x" * 300, "role", "id", "__class__")
_CHAT = (
    b'[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", '
    b'"function": {"name": "get", "arguments": {"key": [1, {"a": null}]}}}]}, '
    b'{"role": "tool", "tool_call_id": "1", "content": "2"}, {"role": "assistant", "content": "two"}]'
)
TASKS = {
    "tasks.jsonl": b'{"id": "a", "prompt": "one", "answer": 1}\n{"prompt": ' + _CHAT + b"}\n",
    "tasks.json": b'[{"id": "a", "prompt": "one"}, {"prompt": "two", "fields": {"a": [1.5, true, null, "x"]}}]',
    "tasks.csv": b'id,prompt,answer\na,"one, or two",1\nb,"a ""quoted"" word",2\n',
}
PLACE = b"""[engine]
max_running = 8
kv_cache_tokens = 4096

[learner]
type = "here"
device = "cpu"

[launch]
num_threads = 1
gateway_host = "127.0.0.1"
"""
DRY_RUN = ("train", "toy", "--no-supervise", "--dry-run")
WARM_START = (
    "train",
    "tiny",
    "--no-supervise",
    "--no-check",
    "schedule.max_steps=1",
    "warm_start.demonstrations=../toy/demonstrations.jsonl",
)
ON_RUN: Sequence[Sequence[str]] = [
    ("runs", "list"),
    ("runs", "show", "run"),
    ("report", "run"),
    ("diagnose", "run"),
    ("review", "run"),
    ("replay", "run"),
    ("replay", "run", "--training"),
    ("verify", "run"),
    ("export", "run", "out", "--merge"),
    ("eval", "run", "--rescore", "--scorer", "tiny:reward"),
    ("runs", "branch", "run", "schedule.max_steps=5", "--no-train", "--name", "other"),
    ("runs", "copy", "run", "run.copy_to=s3://"),
    ("train", "--resume", "run", "--no-supervise", "--no-check"),
]
LINES: Sequence[tuple[Sequence[str], Sequence[str]]] = [
    *((line, ()) for line in ON_RUN),
    (("runs", "stop", "run", "--json"), ()),
    (("runs", "list", "--runs-dir", "runs"), ()),
    (("runs", "fetch", "memory://none", "--runs-dir", "runs"), ()),
    (("runs", "sync", "run", "tracking.tensorboard=true"), ()),
    (("config", "optimizer.learning_rate", "--json"), ()),
    (("config", "batch"), ()),
    (
        ("plan", "toy", "--gpu", "H100", "--episode-tokens", "300", "--sampled-tokens", "20", "model.name=qwen3-0.6b"),
        (),
    ),
    (("init", "new", "--from-traces", "toy/traces.jsonl", "--good-field", "good", "--good-at-least", "0.5"), ()),
    (("init", "new", "--model", "qwen3-0.6b"), ()),
    (("report", "run", "--out", "page.html", "--price", "hour=1"), ()),
    (("eval", "run", "--policy", "base", "--temperature", "0", "evaluation.eval_num_tasks=1"), ()),
    (("train", "toy", "--name", "name", "batch.group_size=4"), ("--dry-run", "--dry-run", "batch.group_size=no")),
    (("train", "toy", "--seeds", "0,4", "--on", "place.toml"), ("--dry-run", "--dry-run", "batch.group_size=no")),
    (("train", "toy", "--model-weights", "run@best"), ("--dry-run", "--dry-run", "batch.group_size=no")),
    (("check", "toy", "--minutes", "0.5", "--page", "page.html", "batch.group_size=4"), ("--only", "nothing")),
    (("bootstrap", "toy", "--teacher", "expert", "--episodes", "4", "--out", "taught.jsonl"), ("--teacher", "none")),
    (("quickstart", "toy"), ("batch.group_size=no",)),
    (("control", "run"), ("--unknown",)),
    (
        ("serve", "run", "--port", "0", "--max-tokens", "9", "--temperature", "1"),
        ("--tls-certificate", "no.pem", "--tls-key", "no.pem"),
    ),
    (("watch", "run", "--price", "hour=1"), ("--port", "70000")),
    (
        ("record", "--upstream", "http://127.0.0.1:9", "--model", "m", "--out", "taped"),
        ("--tls-certificate", "no.pem", "--tls-key", "no.pem"),
    ),
    (("engine", "toy", "--host", "127.0.0.1", "--port", "0"), ("batch.group_size=no",)),
    (("learner", "toy", "--host", "127.0.0.1", "--port", "0"), ("batch.group_size=no",)),
    (("worker", "--connect", "127.0.0.1:9", "--processes", "1"), ("--wait", "1")),
    (("install", "vllm", "--into", "there"), ("--device", "abacus")),
]
"""Command lines, each with words that are kept, so that none of them serves, trains for long or installs anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command, and what was damaged before it."""

    number: int
    kind: str
    what: str
    command: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a command ended. The exit code is None if it had to be stopped."""

    code: int | None
    seconds: float
    output: str
    errors: str

    @property
    def error_bytes(self) -> int:
        """The length of the error, or 0 if there is none."""
        return len(self.errors.encode("utf-8", "replace")) if self.code else 0

    def faults(self, allowed: frozenset[int], most_seconds: float) -> Iterator[str]:
        """Yield what is wrong about this end."""
        if self.code not in allowed and not (self.code == 1 and OWN_CODE in self.errors):
            yield f"exit code {self.code}"
        if self.seconds > most_seconds:
            yield f"{self.seconds:.0f} s"
        if self.error_bytes > MOST_BYTES:
            yield f"an error of {self.error_bytes:,} bytes"
        if "Traceback" in self.errors:
            yield "a traceback"
        if visible(self.output + self.errors) != self.output + self.errors:
            yield "control characters"


def damage(content: bytes, numbers: random.Random) -> bytes:
    """Change bytes at one to four places: they are replaced, removed, repeated or added, or the end is cut off."""
    for _ in range(numbers.randint(1, 4)):
        start = numbers.randrange(len(content) + 1)
        end = min(len(content), start + int(numbers.expovariate(1 / 12)))
        piece = numbers.choice(PIECES)
        changed = {
            "replace": content[:start] + piece + content[end:],
            "remove": content[:start] + content[end:],
            "repeat": content[:end] + content[start:],
            "cut": content[:start],
        }
        content = changed[numbers.choices(list(changed), [6, 2, 2, 1])[0]]
    return content


def reshape(value: Any, numbers: random.Random) -> None:
    """Replace, remove or add something at a random place in nested lists and objects."""
    place = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = numbers.choice(keys)
        if not isinstance(place[key], dict | list) or numbers.random() < 0.2:
            break
        place = place[key]
    how = numbers.choices(["replace", "remove", "add"], [6, 2, 2])[0] if keys else "add"
    if how == "remove":
        del place[key]
    elif how == "replace":
        place[key] = numbers.choice(VALUES)()
    elif isinstance(place, dict):
        place |= {numbers.choice(NAMES) + str(number): 1 for number in range(numbers.choice([1, 1, 3000]))}
    else:
        place.append(numbers.choice(VALUES)())


def reshape_file(path: Path, numbers: random.Random) -> bool:
    """Change the values of a TOML or JSON file, which stays valid. Return whether the file is one."""
    if path.suffix == ".toml":
        tables = tomllib.loads(path.read_text("utf-8"))
        reshape(tables, numbers)
        with contextlib.suppress(TypeError):  # TOML has no null
            path.write_text(tomli_w.dumps(tables), "utf-8")
        return True
    if path.suffix not in (".json", ".jsonl"):
        return False
    lines = path.read_text("utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
    if not lines:
        return False
    index = numbers.randrange(len(lines))
    value = json.loads(lines[index])
    reshape(value, numbers)
    lines[index] = json.dumps(value)
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return True


def damage_file(path: Path, numbers: random.Random) -> str:
    """Damage a file, or put something else in its place. Return what was done."""
    hows = ["reshaped", "damaged", "removed", "emptied", "a folder", "a link", "a pipe"]
    how = numbers.choices(hows, [20, 20, 2, 1, 1, 1, 1])[0]
    if how == "reshaped" and reshape_file(path, numbers):
        return f"{path} {how}"
    if how in ("reshaped", "damaged"):
        path.write_bytes(damage(path.read_bytes(), numbers))
        return f"{path} damaged"
    path.unlink()
    if how == "emptied":
        path.touch()
    elif how == "a folder":
        path.mkdir()
    elif how == "a link":
        path.symlink_to("/etc/passwd")
    elif how == "a pipe":
        os.mkfifo(path)
    return f"{path} {how}"


def damage_line(numbers: random.Random) -> list[str]:
    """Return a command line in which one to three words were replaced, added, changed, repeated or removed."""
    good, kept = numbers.choice(LINES)
    words = list(good)
    for _ in range(numbers.randint(1, 3)):
        place = numbers.randrange(len(words) + 1)
        how = numbers.choices(["replace", "add", "change", "repeat", "remove"], [5, 5, 3, 1, 2])[0]
        if how == "add":
            words.insert(place, numbers.choice(WORDS))
        elif place == len(words):
            continue
        elif how == "replace":
            words[place] = numbers.choice(WORDS)
        elif how == "change":
            words[place] = os.fsdecode(damage(os.fsencode(words[place]), numbers)).lstrip("/")
        elif how == "repeat":
            words.insert(place, words[place])
        else:
            del words[place]
    return [*words, *kept]


def damage_recipe(number: int, numbers: random.Random) -> Case:
    name = numbers.choices(["toy/recipe.toml", "place.toml"], [4, 1])[0]
    what = damage_file(Path(name), numbers)
    commands = [DRY_RUN, ("plan", "toy", "--gpu", "H100", "model.name=qwen3-0.6b")]
    rest = ("--on", "place.toml") if name == "place.toml" else ()
    return Case(number=number, kind="recipe", what=what, command=[*numbers.choice(commands), *rest])


def damage_data_set(number: int, numbers: random.Random) -> Case:
    name = numbers.choice([*TASKS, "tasks.parquet", "demonstrations.jsonl", "traces.jsonl"])
    what = damage_file(Path("toy", name), numbers)
    if name == "traces.jsonl":
        command: Sequence[str] = ("init", "new", "--from-traces", "toy/traces.jsonl", "--model", "scratch")
    elif name == "demonstrations.jsonl":
        command = WARM_START
    else:
        command = (*DRY_RUN, f"data.train={name}")
    return Case(number=number, kind="data set", what=what, command=command)


def damage_run(number: int, numbers: random.Random) -> Case:
    files = sorted(path for path in Path("runs/run").rglob("*") if path.is_file() and path.suffix != ".py")
    what = damage_file(numbers.choice(files), numbers)
    return Case(number=number, kind="run folder", what=what, command=numbers.choice(ON_RUN))


def damage_command(number: int, numbers: random.Random) -> Case:
    return Case(number=number, kind="command line", what="its words", command=damage_line(numbers))


USER_ERRORS = frozenset({0, 2, 3, 4, 5})
"""Every code but that of a bug. 0, because damage may change nothing that a command reads, or make it a call for help."""
KINDS: Mapping[str, tuple[Callable[[int, random.Random], Case], frozenset[int]]] = {
    "recipe": (damage_recipe, USER_ERRORS - {5}),
    "data set": (damage_data_set, USER_ERRORS - {5}),
    "run folder": (damage_run, USER_ERRORS),
    "command line": (damage_command, USER_ERRORS),
}
"""The kinds of damage in turn, each with the exit codes that may follow."""


OWN_CODE = "It was raised in "
"""Part of the error if the code of a recipe failed, as it may with a damaged episode. Its exit code is 1."""


class _Late(BaseException):
    """A command in this process takes far too long."""


def run_here(command: Sequence[str]) -> End:
    """Run a command in this process."""

    def stop(*_: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 3 * MOST_SECONDS)
    start = time.monotonic()
    try:
        result = CliRunner().invoke(app, list(command), terminal_width=200)
    except _Late:
        return End(code=None, seconds=time.monotonic() - start, output="", errors="")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return End(code=result.exit_code, seconds=time.monotonic() - start, output=result.stdout, errors=result.stderr)


def run_command(command: Sequence[str]) -> End:
    """Run a command as a user does, but with a terminal as standard input that stays silent."""
    words = [word.replace("\0", "") for word in command]
    ours, theirs = pty.openpty()
    start = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "sparring", *words],
            stdin=theirs,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(9 * MOST_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.monotonic() - start
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)
        os.close(theirs)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return End(code=code, seconds=seconds, output=texts[0], errors=texts[1])


def build(template: Path) -> None:
    """Write what is damaged: a recipe with data sets in `toy/`, a place file, and a finished run in `runs/run`."""
    recipe = ROOT / "recipes" / "pointer_chase"
    shutil.copytree(recipe, template / "toy", ignore=shutil.ignore_patterns("__pycache__", "README.md"))
    for name, content in TASKS.items():
        (template / "toy" / name).write_bytes(content)
    parquet.write_table(pa.table({"id": ["a", "b"], "prompt": ["one", "two"]}), template / "toy" / "tasks.parquet")
    (template / "toy" / "demonstrations.jsonl").write_bytes((b'{"messages": ' + _CHAT + b"}\n") * 2)
    (template / "toy" / "traces.jsonl").write_bytes((b'{"good": 1, "messages": ' + _CHAT + b"}\n") * 8)
    (template / "place.toml").write_bytes(PLACE)
    shutil.copytree(ROOT / "tests" / "faults" / "recipe", template / "tiny")
    (template / "tiny" / "held_out.json").write_bytes(TASKS["tasks.json"])
    changes = ["schedule.max_steps=2", "reward.scorer=tiny:reward", "data.held_out=held_out.json"]
    with (
        contextlib.chdir(template),
        MultiTurnRLTrainer(Path("tiny"), overrides=changes, name="run", quiet=True, check=False) as trainer,
    ):
        trainer.train()
        MultiTurnRLEvaluator(trainer, quiet=True).evaluate()


def cases(seed: int, numbers: range, template: Path) -> Iterator[Case]:
    """Yield cases. While one is used, the working directory has its damaged files. Each has a folder of its own, because a
    command that was stopped may leave a process that still writes."""
    kinds = list(KINDS)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for number in numbers:
            case = Path(folder, str(number))
            place = case / "b" / "c" / "work"
            shutil.copytree(template, place)
            with contextlib.chdir(place):
                yield KINDS[kinds[number % len(kinds)]][0](number, random.Random(f"{seed}-{number}"))
            shutil.rmtree(case, ignore_errors=True)


def play(
    todo: Iterator[Case], run: Callable[[Sequence[str]], End], most_seconds: float = MOST_SECONDS
) -> list[tuple[Case, End, list[str]]]:
    """Run cases, and print those that end wrongly. Return each with its end and what is wrong about it."""
    played = []
    for case in todo:
        end = run(case.command)
        faults = list(end.faults(KINDS[case.kind][1], most_seconds))
        played.append((case, end, faults))
        if faults:
            shown = " ".join(word if len(word) < 80 else f"{word[:80]}... ({len(word)})" for word in case.command)
            print(f"case {case.number}: {', '.join(faults)}\n  {case.what}\n  {visible(shown)}")
            print(f"  {visible(end.errors[:600])}", flush=True)
    return played


def row_of(name: str, played: Sequence[tuple[Case, End, list[str]]]) -> dict[str, Any]:
    codes = Counter(end.code for _, end, _ in played)
    return {
        "damaged": name,
        "cases": len(played),
        **{f"exit {code}": codes[code] for code in sorted(USER_ERRORS)},
        "wrong": sum(bool(faults) for _, _, faults in played),
        "slowest, s": max(end.seconds for _, end, _ in played),
        "longest error, bytes": max(end.error_bytes for _, end, _ in played),
    }


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--cases", type=int, default=2000, help="how many commands run in this process")
    parser.add_argument("--commands", type=int, default=100, help="how many run as real ones; cases of the next seed")
    arguments = parser.parse_args()
    num, num_real = (16, 2) if arguments.smoke else (arguments.cases, arguments.commands)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    first = arguments.first
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder)
        build(template)
        here = play(cases(arguments.seed, range(first, first + num), template), run_here)
        real = play(cases(arguments.seed + 1, range(first, first + num_real), template), run_command)
    rows = [row_of(kind, part) for kind in KINDS if (part := [one for one in here if one[0].kind == kind])]
    rows += [row_of("each, real commands", real)] if real else []
    figures = {
        "wrong ends": float(sum(row["wrong"] for row in rows)),
        "slowest command, s": max(row["slowest, s"] for row in rows),
        "longest error, bytes": float(max(row["longest error, bytes"] for row in rows)),
    }
    sides = {side: count for side, count in (("in this process", num), ("real commands", num_real)) if count}
    return report(
        "mutations", rows, figures=figures, targets=TARGETS, path=arguments.json, sides=sides, smoke=arguments.smoke
    )


if __name__ == "__main__":
    sys.exit(main())
