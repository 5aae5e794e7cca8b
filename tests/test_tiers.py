"""The parts of the suite: the lists name tests that exist, and every test is in exactly one of `make test` and `make
long`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiers import ALWAYS, LONG, ROOT, SLOW, choose, divide, is_long, read_list


@pytest.mark.parametrize("path", [SLOW, LONG], ids=lambda path: path.stem)
def test_a_list_names_files_and_tests_that_exist(path: Path) -> None:
    for line in read_list(path):
        file, _, name = line.partition("::")
        text = (ROOT / file).read_text("utf-8")
        assert f"def {name.split('::')[-1]}(" in text or not name, f"{line}: renew the lists with tests/tiers.py"


def test_the_tests_that_always_run_are_in_the_list_of_long_ones() -> None:
    long = read_list(LONG)
    assert {test.partition("[")[0] for test in ALWAYS} <= set(long)
    assert not any(is_long(test, long) for test in ALWAYS)


def test_a_test_is_long_with_all_its_cases_unless_it_always_runs() -> None:
    long = frozenset({"tests/a.py::test_x", *(test.partition("[")[0] for test in ALWAYS)})
    assert is_long("tests/a.py::test_x", long)
    assert is_long("tests/a.py::test_x[case[0]]", long)
    assert not is_long("tests/a.py::test_xy", long)
    kept = next(test for test in ALWAYS if "[" in test)
    assert not is_long(kept, long)
    assert is_long(kept.partition("[")[0] + "[another case]", long)


def test_a_report_gives_the_lists(tmp_path: Path) -> None:
    cases = [
        ("tests.test_tiers", "test_x[a]", 1.0),
        ("tests.test_tiers", "test_x[b]", 7.0),
        ("tests.test_cli", "t", 2.0),
    ]
    lines = [f'<testcase classname="{file}" name="{name}" time="{seconds}"/>' for file, name, seconds in cases]
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(lines)}</testsuite></testsuites>", "utf-8")
    slow, long = divide(
        report, {"tests/test_tiers.py::test_needs_a_gpu": 9.0, "tests/test_cli.py::t": 8.0}, fast_seconds=5
    )
    assert slow == {"tests/test_tiers.py": 8.0}
    assert long == {"tests/test_tiers.py::test_x": 1.0, "tests/test_tiers.py::test_needs_a_gpu": 9.0}


def test_ci_runs_the_first_case_of_a_long_test_that_is_not_among_the_longest() -> None:
    tests = ["a.py::test_x[1]", "a.py::test_x[2]", "a.py::test_y[1]", "a.py::test_y[2]", "a.py::test_z"]
    long = {"a.py::test_x": 14.0, "a.py::test_y": 16.0}
    assert choose(tests, "ci", long) == [True, False, False, False, True]
    assert choose(tests, "usual", long) == [False, False, False, False, True]
    assert choose(tests, "long", long) == [True, True, True, True, False]
