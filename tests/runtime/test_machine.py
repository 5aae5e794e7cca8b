"""What this process may use of the machine, in a container, in a job of a scheduler, or under `taskset`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparring.runtime import machine
from sparring.runtime.machine import CGroups, count_processors, default_threads

ROOT = Path(__file__).parents[2]
GIB = 2**30


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def groups(tmp_path: Path, version: int) -> CGroups:
    """The group `box` in the group `pod`, whose files a test writes."""
    (tmp_path / "cgroup").write_text(
        {1: "9:name=systemd:/\n4:memory,hugetlb:/pod/box\n3:cpu,cpuacct:/pod/box\n", 2: "0::/pod/box\n"}[version],
        "ascii",
    )
    return CGroups(tmp_path / "cgroup", tmp_path / "fs")


def write_memory(groups: CGroups, version: int, name: str, limit: str, used: str, idle: int) -> None:
    folder = groups.root / ("memory" if version == 1 else "") / name
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}[version]
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in zip(names, (limit, used), strict=True):
        (folder / file).write_text(value, "ascii")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {idle}\n", "ascii")


def write_quota(groups: CGroups, version: int, name: str, quota: int | None, period: int = 100_000) -> None:
    folder = groups.root / ("cpu" if version == 1 else "") / name
    folder.mkdir(parents=True, exist_ok=True)
    if version == 1:
        (folder / "cpu.cfs_quota_us").write_text(f"{-1 if quota is None else quota}\n", "ascii")
        (folder / "cpu.cfs_period_us").write_text(f"{period}\n", "ascii")
    else:
        (folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {period}\n", "ascii")


def test_the_memory_of_a_container_is_what_its_control_groups_leave(groups: CGroups, version: int) -> None:
    write_memory(groups, version, "pod/box", "1000", "400", 50)
    write_memory(groups, version, "pod", "max", "900", 0)
    assert list(groups.memory()) == [(1000, 350)]
    write_memory(groups, version, "pod", "2000", "900", 0)
    assert list(groups.memory()) == [(1000, 350), (2000, 900)]


def test_the_processors_of_a_container_are_those_that_its_control_groups_grant(groups: CGroups, version: int) -> None:
    assert list(groups.processors()) == []  # no file at all
    write_quota(groups, version, "pod/box", None)
    write_quota(groups, version, "pod", 250_000)
    assert list(groups.processors()) == [2.5]
    write_quota(groups, version, "pod/box", 5_000, 10_000)
    assert list(groups.processors()) == [0.5, 2.5]


def test_in_a_container_without_its_own_view_the_root_is_the_container(groups: CGroups, version: int) -> None:
    write_quota(groups, version, "", 300_000)
    write_memory(groups, version, "", "1000", "400", 0)
    assert (list(groups.processors()), list(groups.memory())) == ([3.0], [(1000, 400)])


def test_controllers_that_are_mounted_together_need_no_link(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("3:cpu,cpuacct:/pod\n", "ascii")
    folder = tmp_path / "fs" / "cpu,cpuacct" / "pod"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("150000\n", "ascii")
    (folder / "cpu.cfs_period_us").write_text("100000\n", "ascii")
    assert list(CGroups(tmp_path / "cgroup", tmp_path / "fs").processors()) == [1.5]


def test_a_group_may_have_any_name_and_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_bytes(b"nothing\n0::/b\xfcro\n")
    folder = tmp_path / "fs" / os.fsdecode(b"b\xfcro")
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text("50000 100000\n", "ascii")
    assert list(CGroups(tmp_path / "cgroup", tmp_path / "fs").processors()) == [0.5]


def test_a_machine_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    groups = CGroups(tmp_path / "missing", tmp_path)
    assert (list(groups.processors()), list(groups.memory())) == ([], [])


@pytest.mark.parametrize(
    ("allowed", "granted", "found"), [(8, [], 8), (8, [2.5], 3), (8, [0.2, 4.0], 1), (2, [16.0], 2)]
)
def test_the_least_of_affinity_and_grants_counts_rounded_up(
    monkeypatch: pytest.MonkeyPatch, allowed: int, granted: list[float], found: int
) -> None:
    monkeypatch.setattr(machine, "ALLOWED", allowed)
    monkeypatch.setattr(CGroups, "processors", lambda _: iter(granted))
    assert count_processors() == found


def test_the_processors_are_still_known_after_openmp_has_bound_the_thread() -> None:
    imports = "from sparring import MultiTurnRLTrainer, check; import sparring.serving.serve, torch"
    code = f"{imports}; from sparring.runtime.machine import count_processors; print(count_processors())"
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_PROC_BIND": bind},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for bind in ("false", "true")
    ]
    assert found[0] == found[1] == f"{count_processors()}\n"


def test_a_process_that_may_run_on_one_processor_counts_one() -> None:
    bind = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    command = "os.execv(sys.executable, [sys.executable, '-m', 'sparring', 'doctor', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", bind + command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(done.stdout)["machine"]["processors"] == 1


@pytest.mark.parametrize(("overrides", "threads"), [([], 3), (["run.num_threads=2"], 2)])
def test_a_run_computes_with_the_threads_of_the_variable_unless_its_recipe_states_them(
    tmp_path: Path, overrides: list[str], threads: int
) -> None:
    recipe = (ROOT / "recipes" / "pointer_chase" / "recipe.toml").read_text("utf-8")
    shutil.copytree(
        ROOT / "recipes" / "pointer_chase", tmp_path / "chase", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "chase" / "recipe.toml").write_text(re.sub(r"(?m)^num_threads = .*$", "", recipe), "utf-8")
    code = (
        "import sys, torch; from sparring import MultiTurnRLTrainer\n"
        "with MultiTurnRLTrainer(sys.argv[1], overrides=sys.argv[2:], check=False, quiet=True) as trainer:\n"
        "    trainer.load(); print(torch.get_num_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "chase"), f"run.runs_dir={tmp_path}", *overrides],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split()[-1] == str(threads)


@pytest.mark.parametrize(
    ("variable", "threads"),
    [(None, 4), ("3", 3), (" 3,2", 3), ("16", 16), ("", 4), ("0", 4), ("-1", 4), ("many", 4), ("²", 4)],
)
def test_the_usual_variable_of_openmp_states_the_threads(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, threads: int
) -> None:
    monkeypatch.setattr(machine, "count_processors", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert default_threads() == threads


def test_several_processes_divide_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "count_processors", lambda: 5)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert (default_threads(2), default_threads(8)) == (2, 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert (default_threads(), default_threads(2)) == (3, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert default_threads(2) == 1


def make_group(parent: Path, name: str, files: dict[str, str]) -> Path | None:
    """Create a cgroup with limits below one of the kernel's, or return None if this process may not, or has no such limits."""
    group = parent / name
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        for file, content in files.items():
            if not (group / file).exists():
                raise FileNotFoundError(file)
            (group / file).write_text(content, "ascii")
    except OSError:
        group.rmdir()
        return None
    return group


@pytest.fixture
def limited() -> Iterator[list[Path]]:
    """Cgroups of the kernel that grant half a processor and a GiB."""
    name = f"sparring-test-{os.getpid()}"
    found = [
        make_group(Path("/sys/fs/cgroup/cpu"), name, {"cpu.cfs_quota_us": "50000"}),
        make_group(Path("/sys/fs/cgroup/memory"), name, {"memory.limit_in_bytes": str(GIB)}),
    ]
    if None in found:
        found.append(make_group(Path("/sys/fs/cgroup"), name, {"cpu.max": "50000 100000", "memory.max": str(GIB)}))
    created = [group for group in found if group is not None]
    try:
        if len(created) < 2 and found[-1] is None:
            pytest.skip("this process may not create cgroups with limits")
        yield created
    finally:
        for group in created:
            group.rmdir()


def test_a_process_in_a_real_group_sees_its_limits(limited: list[Path]) -> None:
    join = "import os, sys\nfor path in sys.argv[1].split(':'): open(path + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
    command = "os.execv(sys.executable, [sys.executable, '-m', 'sparring', 'doctor', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", join + command, ":".join(map(str, limited))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(done.stdout)["machine"]
    assert (found["processors"], found["memory_gib"]) == (1, 1)
