"""The shape of the code: what keeps files readable."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import sparring

MAX_ARGUMENTS = 8
MAX_LINES = 80
ROOT = Path(sparring.__file__).parent


def long_constructors(source: str) -> list[str]:
    """Return the classes whose hand-written constructor takes more than eight arguments."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                arguments = method.args
                count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
                if count > MAX_ARGUMENTS:
                    found.append(f"{node.name} takes {count} arguments")
    return found


def test_no_constructor_takes_more_than_eight_arguments() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in ROOT.rglob("*.py")
        if (names := long_constructors(path.read_text(encoding="utf-8")))
    }
    assert found == {}, "group what belongs together in a frozen value, such as EpisodeLimits"


def test_a_constructor_with_nine_arguments_is_found() -> None:
    names = ", ".join("abcdefghi")
    assert long_constructors(f"class A:\n    def __init__(self, *, {names}): ...") == ["A takes 9 arguments"]


def long_functions(source: str) -> list[str]:
    """Return the functions of more than 80 lines, signature and docstring included."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_LINES
    ]


def test_no_function_is_longer_than_eighty_lines() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in ROOT.rglob("*.py")
        if (names := long_functions(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_function_of_eighty_one_lines_is_found() -> None:
    assert long_functions("def a():\n" + "    b()\n" * 80) == ["a"]
    assert long_functions("def a():\n" + "    b()\n" * 79) == []


WRITES_CSV = re.compile(r"csv\.(?:Dict)?[wW]riter|to_csv|write_csv|text/csv")


def test_no_code_writes_csv() -> None:
    """A spreadsheet runs cells that begin with =, +, - or @, and the text of a policy may."""
    assert WRITES_CSV.search("csv.DictWriter(file)")
    files = [path for suffix in ("py", "js") for path in ROOT.rglob(f"*.{suffix}")]
    assert not [path for path in files if WRITES_CSV.search(path.read_text(encoding="utf-8"))], "quote such cells"
