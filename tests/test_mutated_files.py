"""Recipes, data sets and run folders that were damaged at random end a command with a short message, never as a bug."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.trainer import MultiTurnRLTrainer

CHASE = Path(__file__).parents[1] / "recipes" / "pointer_chase"
TINY = Path(__file__).parent / "faults" / "recipe"
EXIT_CODES = {0, 2, 3, 4, 5}
"""A damage may change nothing that a command reads, and `review` may find that an episode was not graded as before."""
MOST_CHARACTERS, MOST_SECONDS = 4000, 10.0
PIECES = [
    b"\0", b"\\u0000", b"\\ud800", b"\xff\xfe", b"\x1b[2J", b"\r", b"\n", b"\xe2\x80\xae", b'"', b"'", b"[", b"]]", b"{", b"}",
    b"=", b",", b":", b"#", b"null", b"true", b"NaN", b"-1", b"1e999", b"9" * 5000, b"[" * 3000, b"{\"a\":" * 3000, b"a." * 200,
    b"x" * 5000, b"../../etc/passwd", b"/", b"~", b"%s", b"\xf0\x9f\x92\xa5",
]  # fmt: skip
TASKS = {
    "tasks.jsonl": b'{"id": "a", "prompt": "one", "answer": 1}\n'
    b'{"prompt": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": '
    b'[{"id": "1", "type": "function", "function": {"name": "get", "arguments": {"key": [1, {"a": null}]}}}]}]}\n',
    "tasks.json": b'[{"id": "a", "prompt": "one"}, {"prompt": "two", "fields": {"a": [1.5, true, null, "x"]}}]',
    "tasks.csv": b'id,prompt,answer\na,"one, or two",1\nb,"a ""quoted"" word",2\n',
}


def damage(content: bytes, numbers: random.Random) -> bytes:
    """Change a text at one to four places: bytes are replaced, removed, repeated or added, or the end is cut off."""
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


def refused(command: Sequence[str], what: str) -> int:
    """Run a command, and return its exit code. Fails for a bug, a long message or a long time."""
    start = time.monotonic()
    result = CliRunner().invoke(app, list(command), terminal_width=200)
    seconds = time.monotonic() - start
    assert result.exit_code in EXIT_CODES, f"{what}\n{result.output}"
    for text in ("Traceback", "This error is unexpected"):
        assert text not in result.output, f"{what}\n{result.output}"
    assert len(result.stderr) < MOST_CHARACTERS, what
    assert seconds < MOST_SECONDS, f"{what}: {seconds:.0f} s"
    return result.exit_code


def play(num: int, seed: int, case: Callable[[random.Random, str], int]) -> None:
    """Run cases, each with numbers of its own. Fails if hardly any damage was noticed."""
    codes = [case(random.Random(f"{seed}-{number}"), f"seed {seed}-{number}") for number in range(num)]
    assert sum(code != 0 for code in codes) > num / 4, codes


def recipes(num: int, seed: int) -> None:
    good = Path("toy/recipe.toml").read_bytes()

    def case(numbers: random.Random, what: str) -> int:
        Path("toy/recipe.toml").write_bytes(damage(good, numbers))
        return refused(["train", "toy", "--dry-run", "--no-supervise"], f"recipe, {what}")

    play(num, seed, case)
    Path("toy/recipe.toml").write_bytes(good)


def data_sets(num: int, seed: int) -> None:
    def case(numbers: random.Random, what: str) -> int:
        name = numbers.choice(list(TASKS))
        Path("toy", name).write_bytes(damage(TASKS[name], numbers))
        return refused(["train", "toy", "--dry-run", "--no-supervise", f"data.train={name}"], f"{name}, {what}")

    play(num, seed, case)


def run_folders(num: int, seed: int) -> None:
    good = Path("good")
    files = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file() and path.suffix != ".py")
    commands = [["runs", "show"], ["report"], ["diagnose"], ["review"], ["replay"], ["verify"], ["export"]]

    def case(numbers: random.Random, what: str) -> int:
        shutil.rmtree("runs", ignore_errors=True)
        shutil.rmtree("out", ignore_errors=True)
        shutil.copytree(good, "runs/run")
        file, command = numbers.choice(files), numbers.choice(commands)
        path = Path("runs/run") / file
        path.write_bytes(damage(path.read_bytes(), numbers))
        rest = ["out", "--merge"] if command == ["export"] else []
        return refused([*command, "run", *rest], f"{file}, {' '.join(command)}, {what}")

    codes = [case(random.Random(f"{seed}-{number}"), f"seed {seed}-{number}") for number in range(num)]
    assert any(codes)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a recipe in `toy/` and a finished run in `good/`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(CHASE, "toy", ignore=shutil.ignore_patterns("__pycache__", "README.md"))
    with MultiTurnRLTrainer(TINY, overrides=["schedule.max_steps=2"], name="run", quiet=True, check=False) as trainer:
        trainer.train()
    Path("runs/run").rename("good")


@pytest.mark.usefixtures("workplace")
def test_damaged_files_end_with_a_short_message() -> None:
    recipes(8, 0)
    data_sets(12, 0)
    run_folders(12, 0)


@pytest.mark.usefixtures("workplace")
def test_hundreds_of_damaged_files_end_with_a_short_message() -> None:
    recipes(120, 1)
    data_sets(150, 1)
    run_folders(150, 1)
