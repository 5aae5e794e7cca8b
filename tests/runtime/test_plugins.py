"""User code is found by `module:name`, next to the recipe first, and its faults are reported."""

import asyncio
import importlib
import re
import sys
from pathlib import Path

import pytest

from sparring.errors import UsageError
from sparring.runtime.plugins import call, load_function, load_object


def write(folder: Path, name: str, source: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, "utf-8")
    return path


def test_a_file_next_to_the_recipe_comes_before_an_installed_module(tmp_path: Path) -> None:
    write(tmp_path, "json.py", "dumps = 'mine'\n")
    assert load_object("json:dumps", folder=tmp_path) == "mine"
    assert load_object("math:pi", folder=tmp_path) == pytest.approx(3.14159, abs=1e-5)


def test_two_recipes_may_each_have_an_environment(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, "environment.py", f"WHO = {name!r}\n")
    found = [load_object("environment:WHO", folder=tmp_path / name) for name in ("a", "b", "a")]
    assert found == ["a", "b", "a"]


def test_a_module_is_run_once_so_that_its_classes_stay_the_same(tmp_path: Path) -> None:
    write(tmp_path, "environment.py", "class Shop: ...\n")
    assert load_object("environment:Shop", folder=tmp_path) is load_object("environment:Shop", folder=tmp_path)


def test_files_of_a_recipe_import_each_other_and_leave_the_path_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, "words_of_this_test.py", "GREETING = 'hello'\n")
    write(tmp_path, "environment.py", "from words_of_this_test import GREETING\n")
    before = list(sys.path)
    assert load_object("environment:GREETING", folder=tmp_path) == "hello"
    assert sys.path == before


def test_a_plain_name_means_the_file_of_the_recipe_that_imports_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, "environment.py", f"WHO = {name!r}\n")
        write(tmp_path / name, "model.py", "from environment import WHO\n")
        write(tmp_path / name, "reward.py", "import environment\nfrom model import WHO\nBOTH = WHO + environment.WHO\n")
    order = [("a", "model:WHO"), ("b", "model:WHO"), ("a", "reward:BOTH"), ("b", "reward:BOTH")]
    assert [load_object(reference, folder=tmp_path / name) for name, reference in order] == ["a", "b", "aa", "bb"]


def test_what_one_recipe_imported_stays_importable_while_another_has_no_such_file(tmp_path: Path) -> None:
    write(tmp_path / "a", "late_of_this_test.py", "WHO = 'a'\n")
    write(
        tmp_path / "a",
        "environment.py",
        "import late_of_this_test\ndef who():\n    import late_of_this_test as late\n    return late.WHO\n",
    )
    write(tmp_path / "b", "judge.py", "WHO = 'b'\n")
    who = load_object("environment:who", folder=tmp_path / "a")
    assert load_object("judge:WHO", folder=tmp_path / "b") == "b"
    assert who() == "a"


@pytest.mark.parametrize("order", [("environment:Shop", "model:Shop"), ("model:Shop", "environment:Shop")])
def test_a_file_that_is_named_and_imported_is_run_once(tmp_path: Path, order: tuple[str, str]) -> None:
    write(tmp_path, "environment.py", "class Shop: ...\n")
    write(tmp_path, "model.py", "from environment import Shop\n")
    one, other = (load_object(reference, folder=tmp_path) for reference in order)
    assert one is other


@pytest.mark.parametrize("reference", ["colorsys:Shop", "environment:Shop"])
def test_a_file_called_like_a_module_of_python_does_not_stand_in_for_it_afterwards(
    tmp_path: Path, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    write(tmp_path, "colorsys.py", "class Shop: ...\n")
    write(tmp_path, "environment.py", "from colorsys import Shop\n")
    load_object(reference, folder=tmp_path)
    assert importlib.import_module("colorsys").rgb_to_hls(0, 0, 0) == (0, 0, 0)


def test_a_file_that_raised_is_run_again_when_it_is_fixed(tmp_path: Path) -> None:
    write(tmp_path, "helper_of_this_test.py", "WHO = 'helper'\n")
    write(tmp_path, "environment.py", "from helper_of_this_test import WHO\nraise ValueError(WHO)\n")
    with pytest.raises(UsageError, match="ValueError: helper"):
        load_object("environment:WHO", folder=tmp_path)
    write(tmp_path, "environment.py", "from helper_of_this_test import WHO\n")
    assert load_object("environment:WHO", folder=tmp_path) == "helper"


def test_a_package_next_to_a_recipe_belongs_to_this_recipe(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, "parts_of_this_test/__init__.py", "")
        write(tmp_path / name, "parts_of_this_test/words.py", f"WHO = {name!r}\n")
        write(tmp_path / name, "environment.py", "from parts_of_this_test.words import WHO\n")
    assert [load_object("environment:WHO", folder=tmp_path / name) for name in ("a", "b")] == ["a", "b"]


def test_names_inside_classes_and_folders_are_reached_with_dots(tmp_path: Path) -> None:
    write(tmp_path, "graders/strict.py", "class Judge:\n    score = 7\n")
    assert load_object("graders.strict:Judge.score", folder=tmp_path) == 7


@pytest.mark.parametrize("reference", ["environment", "environment:", ":Shop", ""])
def test_a_reference_without_both_parts_is_refused(tmp_path: Path, reference: str) -> None:
    with pytest.raises(UsageError, match=r"does not have the form 'module:name'; write, for example"):
        load_object(reference, folder=tmp_path)


@pytest.mark.parametrize(
    ("source", "reference", "message"),
    [
        ("", "nowhere:Shop", r"module 'nowhere' is neither .*nowhere\.py nor importable. Check the name"),
        ("class Shop: ...", "environment:Shp", r"environment\.py has no 'Shp'; did you mean 'Shop'\?"),
        ("", "environment:Shop", r"environment\.py has no 'Shop'; define it there"),
        ("import not_installed_here", "environment:Shop", r"needs 'not_installed_here', which is not installed"),
        ("1 / 0", "environment:Shop", r"cannot be imported: ZeroDivisionError: division by zero\. Fix it"),
        (
            "import os; os.chdir('/')",
            "environment:Shop",
            r"changes the working folder to /, .*Path\(__file__\)\.parent\. F",
        ),
        ("def (", "environment:Shop", r"cannot be imported: SyntaxError.*Fix it"),
        (
            "raise SystemExit('usage: environment.py FILE')",
            "environment:Shop",
            r"SystemExit: usage: environment\.py FILE\. Fix",
        ),
    ],
)
def test_a_fault_of_user_code_is_reported_with_what_to_do(
    tmp_path: Path, source: str, reference: str, message: str
) -> None:
    write(tmp_path, "environment.py", source)
    with pytest.raises(UsageError, match=message) as refused:
        load_object(reference, folder=tmp_path)
    assert re.search(r"Traceback", str(refused.value)) is None


def test_a_module_that_failed_is_tried_again_once_it_is_fixed(tmp_path: Path) -> None:
    write(tmp_path, "environment.py", "1 / 0\n")
    with pytest.raises(UsageError):
        load_object("environment:Shop", folder=tmp_path)
    write(tmp_path, "environment.py", "Shop = 'fixed'\n")
    assert load_object("environment:Shop", folder=tmp_path) == "fixed"


def test_user_code_may_be_sync_or_async() -> None:
    async def doubled(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    assert asyncio.run(call(doubled, 2)) == asyncio.run(call(lambda number: 2 * number, 2)) == 4


def test_user_code_that_exits_fails_like_any_other() -> None:
    with pytest.raises(RuntimeError, match=r"sys\.exit\(3\)"):
        asyncio.run(call(sys.exit, 3))


class Panic(BaseException):
    """As libraries in Rust raise it."""


def test_what_is_raised_and_is_no_exception_fails_the_call_alone() -> None:
    def panics() -> None:
        raise Panic("index out of bounds")

    with pytest.raises(RuntimeError, match=r"the code raised Panic\('index out of bounds'\)"):
        asyncio.run(call(panics))


def test_a_cancellation_from_within_fails_the_call_and_one_from_outside_passes() -> None:
    async def raises_it() -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        with pytest.raises(RuntimeError, match="was cancelled"):
            await call(raises_it)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await call(asyncio.Event().wait)

    asyncio.run(main())


def test_a_function_with_other_parameters_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "logs.py").write_text(
        "def log():\n    return []\n\n\ndef other(num, seed=0):\n    return []\n\n\nnumber = 3\n"
    )

    def load(name: str) -> object:
        return load_function(f"logs:{name}", "number", "seed", key="warm_start.demonstrations", folder=tmp_path)

    assert callable(load("other"))
    with pytest.raises(
        UsageError,
        match=r"warm_start.demonstrations = 'logs:log' is called with \(number, seed\), but is defined as log\(\): "
        r"too many positional arguments. Define it as log\(number, seed\).",
    ):
        load("log")
    with pytest.raises(
        UsageError, match=r"is 3, which is not callable. Specify a function that takes \(number, seed\)"
    ):
        load("number")
