"""A box: what programs in it see and leave, what its limits do, and that nothing of it stays."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import InfrastructureError, UsageError
from sparring.sandbox import Box, Collected, Execution, Limits, Sandbox, open_sandbox
from sparring.sandbox.backends import BUBBLEWRAP, GVISOR, Setup, owns_user_ids
from sparring.sandbox.cgroups import make_group
from sparring.sandbox.identity import PREFIX, is_abandoned, new_name
from sparring.sandbox.leftovers import remove_leftovers
from sparring.sandbox.processes import Spawner, spawner

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    try:
        return open_sandbox(limits=Limits(seconds=20.0))
    except UsageError as error:
        pytest.skip(f"no sandbox works on this machine: {error}")


def python(box: Box, code: str, **options: float) -> "asyncio.Future[Execution]":
    return asyncio.ensure_future(box.run(["python3", "-B", "-c", code], **options))


def census() -> set[str]:
    """What boxes of this process have on the machine: first processes, control groups, folders."""
    mine = f"{PREFIX}{os.getpid()}-"
    found = {str(path) for path in Path(tempfile.gettempdir()).glob(f"{mine}*")}
    for where in spawner.hierarchies:
        found |= {str(path) for path in where.folder.glob(f"{mine}*")}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"--die-with-parent" in command and _parent(folder) == _spawner_id():
            found.add(folder.name)
    return found


def _parent(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def _spawner_id() -> int | None:
    return spawner._process.pid if spawner._process else None


def test_files_last_for_the_session_and_processes_for_one_execution(sandbox: Sandbox) -> None:
    async def played() -> list[str]:
        async with sandbox.session({"data/in.txt": "seven"}) as box:
            first = await python(box, "open('out', 'w').write(open('data/in.txt').read() * 2); x = 1")
            second = await python(box, "import os; print(open('out').read(), sorted(os.listdir()))")
            third = await python(box, "import os, subprocess; subprocess.Popen(['sleep', '99']); print('left one')")
            fourth = await python(box, "import glob; print(len(glob.glob('/proc/[0-9]*')))")
        async with sandbox.session() as box:
            fifth = await python(box, "import os; print(os.listdir())")
        assert first.is_success
        return [run.stdout for run in (second, third, fourth, fifth)]

    # In the third the sleeper was killed with its parent: the first process and the interpreter are all there is.
    assert asyncio.run(played()) == ["sevenseven ['.tmp', 'data', 'out']\n", "left one\n", "2\n", "['.tmp']\n"]


def test_an_execution_contains_what_was_written_and_how_it_ended(sandbox: Sandbox) -> None:
    async def played() -> list[Execution]:
        async with sandbox.session() as box:
            return [
                await box.run(["cat"], stdin="héllo"),
                await python(box, "import sys; print('no', file=sys.stderr); sys.exit(3)"),
                await python(box, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
                await box.run(["no-such-program"]),
                await box.run(["no/such\ud800program", "\0"]),
                await python(box, "import sys; sys.stdout.buffer.write(b'\\xff')"),
                await python(box, "while True: pass", seconds=0.3),
                await python(box, "while True: print('x' * 1000)"),
            ]

    echoed, failed, crashed, missing, unnamed, odd, slow, loud = asyncio.run(played())
    assert (echoed.stdout, echoed.exit_code, echoed.ended, echoed.is_success) == ("héllo", 0, "exit", True)
    assert (failed.exit_code, failed.stderr, failed.is_success) == (3, "no\n", False)
    assert (crashed.exit_code, crashed.ended) == (-signal.SIGSEGV, "exit")
    assert (missing.exit_code, missing.stderr) == (127, "no-such-program: No such file or directory\n")
    assert (unnamed.exit_code, unnamed.ended) == (127, "exit")
    assert odd.stdout == "\ufffd"
    assert (slow.ended, slow.exit_code, slow.scratch_lost) == ("deadline", None, False)
    assert (loud.ended, len(loud.stdout)) == ("output", sandbox.limits.output_kib * 1024)


def test_input_larger_than_any_pipe_arrives_whole(sandbox: Sandbox) -> None:
    async def played() -> str:
        async with sandbox.session() as box:
            return (await box.run(["wc", "-c"], stdin=b"x" * 3_000_000)).stdout

    assert asyncio.run(played()) == "3000000\n"


def test_a_program_can_be_talked_to(sandbox: Sandbox) -> None:
    async def played() -> tuple[list[bytes | None], Execution]:
        async with sandbox.session() as box, box.start(["cat"]) as program:
            heard = []
            for word in (b"one\n", b"two\n"):
                await program.write(word)
                heard.append(await program.read_line())
            await program.end_input()
            return [*heard, await program.read_line()], await program.wait()

    heard, run = asyncio.run(played())
    assert heard == [b"one", b"two", None]
    assert (run.ended, run.exit_code) == ("exit", 0)


def test_a_box_that_is_killed_for_its_files_begins_anew_and_reports_it(sandbox: Sandbox) -> None:
    async def played() -> tuple[Execution, Execution]:
        place = open_sandbox(limits=Limits(files=100))
        async with place.session({"first": "1"}) as box:
            many = await python(box, "import time\nfor n in range(9999): open(f'f{n}', 'w').close()\ntime.sleep(9)")
            return many, await python(box, "import os; print(sorted(os.listdir()))")

    many, after = asyncio.run(played())
    assert (many.ended, many.scratch_lost) == ("files", True)
    assert after.stdout == "['.tmp', 'first']\n"


@pytest.mark.parametrize("last", ["", "import time; time.sleep(9)"])
def test_files_that_a_program_leaves_too_many_of_never_end_the_next_program(sandbox: Sandbox, last: str) -> None:
    async def played() -> tuple[Execution, Execution]:
        place = open_sandbox(limits=Limits(files=40))
        async with place.session() as box:
            # Few enough to be made between two looks.
            many = await python(box, f"for n in range(60): open(f'f{{n}}', 'w').close()\n{last}", seconds=0.5)
            return many, await python(box, "print(1)")

    many, after = asyncio.run(played())
    assert (many.ended, many.scratch_lost) == ("files", True)
    assert (after.ended, after.stdout) == ("exit", "1\n")


def test_memory_of_all_processes_together_has_a_limit(sandbox: Sandbox) -> None:
    if "memory by control group" not in sandbox.enforcement:
        pytest.skip(f"memory is limited by process here: {sandbox.enforcement}")
    code = (
        "import os, time\nfor n in range(4):\n    if os.fork() == 0:\n        a = bytearray(60 << 20)\n"
        "        a[::4096] = b'x' * len(a[::4096])\n        time.sleep(9)\n        os._exit(0)\n"
        "print([os.waitpid(-1, 0)[1] for _ in range(1)])"
    )

    async def played() -> Execution:
        # 64 MiB of each process are allowed, 64 + 8 + 1 + 24 of all: two children fit, four do not.
        place = open_sandbox(limits=Limits(memory_mib=80, disk_mib=8, shared_memory_mib=1))
        async with place.session() as box:
            return await python(box, code, seconds=15)

    run = asyncio.run(played())
    # The kernel killed a child (status 9), or with it the one that waits.
    assert run.stdout == "[9]\n" or run.ended == "memory"


def test_what_is_collected_is_regular_files_that_were_asked_for(sandbox: Sandbox) -> None:
    async def played() -> tuple[dict[str, bytes], dict[str, str], dict[str, bytes]]:
        async with sandbox.session({"a/b.txt": b"\x00\x01"}) as box:
            await python(
                box, "import os; os.symlink('/etc/passwd', 'link'); os.mkdir('d'); open('big', 'w').write('x' * 99)"
            )
            some = await box.collect(["a/b.txt", "link", "d", "none", "big"], max_bytes=50)
            every = await box.collect()
            return dict(some.files), dict(some.refused), dict(every.files)

    files, refused, every = asyncio.run(played())
    assert files == {"a/b.txt": b"\x00\x01"}
    assert refused == {
        "link": "is a link",
        "d": "is not a regular file",
        "none": "No such file or directory",
        "big": "is larger than what may be collected",
    }
    assert sorted(every) == ["a/b.txt", "big"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../b", "", "a//b", "a\0b", "./a", "x" * 600, "\ud800"])
def test_names_that_lead_elsewhere_are_refused(sandbox: Sandbox, name: str) -> None:
    async def played() -> list[list[str]]:
        async with sandbox.session() as box:
            collected = await box.collect([name])
            return [[*collected.files], [*collected.refused], [*await box.try_write({name * 2: "x"})]]

    assert asyncio.run(played()) == [[], [name], [name * 2]]
    with pytest.raises(UsageError, match="cannot name a file in the scratch folder"):
        Box(sandbox, {name * 2: "x"})


def test_what_was_collected_can_be_written_again_below_another_folder(sandbox: Sandbox) -> None:
    # 16 parts and 512 characters are the most that is collected: 15 folders of 33 characters, 15 slashes and 2 characters.
    longest = ("d" * 33 + "/") * 15 + "ff"
    assert (len(longest), longest.count("/") + 1) == (512, 16)

    async def played() -> dict[str, str]:
        async with sandbox.session({longest: "x", "e/" * 16 + "g": "too deep", longest + "f": "too long"}) as box:
            collected = await box.collect()
            await box.write({f"artefacts/{name}": content for name, content in collected.files.items()})
            assert list(collected.files) == [longest]
            return dict(collected.refused)

    assert asyncio.run(played()) == {
        "e/" * 15 + "e": "is nested in too many folders",
        longest + "f": "is not a plain relative path of up to 512 characters and 16 parts",
    }


def test_files_that_do_not_fit_are_an_error_with_the_limit(sandbox: Sandbox) -> None:
    async def played() -> None:
        async with open_sandbox(limits=Limits(disk_mib=1)).session({"big": bytes(2 << 20)}):
            pass

    with pytest.raises(UsageError, match="limited to 1 MiB"):
        asyncio.run(played())


def test_boxes_run_at_once_each_as_a_user_of_its_own(sandbox: Sandbox) -> None:
    async def one(number: int) -> tuple[str, int]:
        async with sandbox.session({"n": str(number)}) as box:
            run = await python(box, "import time; time.sleep(0.3); print(open('n').read())")
            assert box._started is not None
            return run.stdout, os.stat(f"/proc/{box._started.id}").st_uid

    async def played() -> list[tuple[str, int]]:
        return await asyncio.gather(*(one(number) for number in range(8)))

    results = asyncio.run(played())
    assert [text for text, _ in results] == [f"{number}\n" for number in range(8)]
    if sandbox.backend is BUBBLEWRAP and os.geteuid() == 0:
        users = [user for _, user in results]
        assert len(set(users)) == 8
        assert all(60578 <= user <= 61183 for user in users)


def test_nothing_is_left_however_a_session_is_cut_short(sandbox: Sandbox) -> None:
    async def session() -> None:
        async with sandbox.session({"a": "1"}) as box:
            await python(box, "print(1)")
            await box.collect()

    async def cut(after: int) -> None:
        """Cancel after so many turns of the loop, which end at other places of the session each time."""
        task = asyncio.create_task(session())
        for _ in range(after):
            await asyncio.sleep(0.004)
            if task.done():
                break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def played() -> int:
        async with sandbox.session():
            while_open = len(census())
        for after in range(20):
            await cut(after)
        return while_open

    before = census()
    open_files = len(os.listdir("/proc/self/fd"))
    while_open = asyncio.run(played())
    assert census() == before
    assert len(os.listdir("/proc/self/fd")) <= open_files + 1
    if spawner.hierarchies:
        assert while_open > len(before)


def test_an_episode_that_fails_leaves_nothing(sandbox: Sandbox) -> None:
    async def played() -> None:
        async with sandbox.session() as box:
            await python(box, "print(1)")
            raise ValueError("the episode")

    before = census()
    with pytest.raises(ValueError, match="the episode"):
        asyncio.run(played())
    assert census() == before


def test_a_box_that_is_killed_from_outside_is_an_infrastructure_failure_and_no_result(sandbox: Sandbox) -> None:
    async def played() -> None:
        async with sandbox.session() as box:
            running = python(box, "import time; time.sleep(30)")
            await asyncio.sleep(0.3)
            assert box._started is not None
            os.kill(box._started.id, signal.SIGKILL)
            await running

    with pytest.raises(InfrastructureError, match="ended by itself"):
        asyncio.run(played())


def first_process(box: Box) -> int:
    assert box._started is not None
    return int(Path(f"/proc/{box._started.id}/task/{box._started.id}/children").read_text().split()[0])


def test_a_first_process_that_ends_is_the_doing_of_the_programs_that_ran_next_to_it(sandbox: Sandbox) -> None:
    if sandbox.backend is not BUBBLEWRAP:
        pytest.skip("the first process is another's child")

    async def played() -> tuple[Execution, Execution, Collected, str]:
        async with sandbox.session({"first": "1"}) as box:
            running = python(box, "import time; time.sleep(30)")
            await asyncio.sleep(0.3)
            os.kill(first_process(box), signal.SIGKILL)
            run, after = await running, await python(box, "import os; print(sorted(os.listdir()))")
            # Between two programs: nothing can be collected, and what is written lies in a new box.
            os.kill(first_process(box), signal.SIGKILL)
            collected = await box.collect(["first"])
            await python(box, "open('second', 'w').write('2')")
            os.kill(first_process(box), signal.SIGKILL)
            await box.write({"third": "3"})
            return run, after, collected, (await python(box, "import os; print(sorted(os.listdir()))")).stdout

    run, after, collected, left = asyncio.run(played())
    assert (run.ended, run.exit_code, run.scratch_lost) == ("killed", None, True)
    assert after.stdout == "['.tmp', 'first']\n"
    assert collected == Collected(files={}, refused={"first": "the sandbox failed after a program had run in it"})
    assert left == "['.tmp', 'first', 'third']\n"


def test_a_program_whose_box_is_closed_meanwhile_was_killed(sandbox: Sandbox) -> None:
    async def played() -> Execution:
        async with sandbox.session() as box:
            running = python(box, "import time; time.sleep(30)")
            await asyncio.sleep(0.3)
            await box.close()
            return await running

    assert asyncio.run(played()).ended == "killed"


def test_a_first_process_that_ends_before_any_program_is_an_infrastructure_failure(sandbox: Sandbox) -> None:
    if sandbox.backend is not BUBBLEWRAP:
        pytest.skip("the first process is another's child")

    async def played() -> None:
        async with sandbox.session() as box:
            os.kill(first_process(box), signal.SIGKILL)
            await box.collect()

    with pytest.raises(InfrastructureError, match="ended by itself"):
        asyncio.run(played())


def forbid_files(pid: int) -> None:
    """Let a process open nothing more, as its own user, who alone may."""
    user = int(Path(f"/proc/{pid}/status").read_text().partition("Uid:")[2].split()[0])
    identity: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if os.geteuid() == 0 else {}
    subprocess.run(["prlimit", f"--pid={pid}", "--nofile=3:3"], check=True, **identity)


@pytest.mark.parametrize(("has_run", "ended"), [(False, None), (True, "killed")])
def test_a_program_that_cannot_be_started_counts_only_where_another_ran_before(
    sandbox: Sandbox, has_run: bool, ended: str | None
) -> None:
    if sandbox.backend is not BUBBLEWRAP:
        pytest.skip("the first process is another's child")

    async def played() -> Execution:
        async with sandbox.session() as box:
            if has_run:
                await box.run(["true"])
            forbid_files(first_process(box))
            return await box.run(["true"])

    if ended is None:
        with pytest.raises(InfrastructureError, match="no program can be started: Too many open files"):
            asyncio.run(played())
    else:
        assert asyncio.run(played()).ended == ended


def test_a_box_that_a_program_spoiled_is_replaced_by_the_next_write(sandbox: Sandbox) -> None:
    async def played() -> tuple[str, dict[str, str]]:
        async with sandbox.session({"first": "1"}) as box:
            await python(box, "import os; os.makedirs('a.txt/b'); open('own', 'w').close()")
            refused = await box.try_write({"a.txt": "x", "c.txt": "y"})
            await box.write({"a.txt": "x"})
            return (await python(box, "import os; print(sorted(os.listdir()), open('a.txt').read())")).stdout, refused

    assert asyncio.run(played()) == ("['.tmp', 'a.txt', 'first'] x\n", {"a.txt": "Is a directory"})


def test_programs_are_another_user_than_the_first_process(sandbox: Sandbox) -> None:
    if sandbox.backend not in (BUBBLEWRAP, GVISOR) or (sandbox.backend is BUBBLEWRAP and os.geteuid() != 0):
        pytest.skip("only root can put two users into a box of bubblewrap")
    code = """
import os
def refusal(action, *arguments):
    try: action(*arguments)
    except OSError as error: return error.errno
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
first = dict(line.split(":", 1) for line in open("/proc/1/status"))
print(os.getuid(), os.getgroups(), first["Uid"].split(), refusal(os.kill, 1, 0), refusal(os.setuid, 0))
print({int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")}, os.stat(".").st_uid, os.stat("a/b").st_uid)
"""

    async def played() -> str:
        async with sandbox.session({"a/b": "1"}) as box:
            return (await python(box, code)).stdout

    # EPERM is 1.
    assert asyncio.run(played()) == "1000 [] ['0', '0', '0', '0'] 1 1\n{0} 1000 1000\n"


def test_a_back_end_that_vanished_is_an_infrastructure_failure(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def played() -> None:
        async with sandbox.session() as box:
            await python(box, "print(1)")

    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InfrastructureError, match="is not installed"):
        asyncio.run(played())


def test_a_spawner_that_was_killed_is_one_failure_and_then_replaced(sandbox: Sandbox) -> None:
    own = Spawner()
    setup = Setup(limits=Limits(), python=sandbox.setup.python)
    started = own.start(sandbox.backend, setup)
    assert own._process is not None
    own._process.kill()
    with pytest.raises(InfrastructureError, match="has ended"):
        own.stop(started)
    again = own.start(sandbox.backend, setup)
    own.stop(again)
    own.close()


_OWNER = """
import asyncio
from sparring.sandbox import open_sandbox
async def main():
    async with open_sandbox().session() as box:
        print(box._started.id, flush=True)
        await box.run(["sleep", "77"], seconds=60)
asyncio.run(main())
"""


def test_a_process_that_is_killed_takes_its_boxes_along_and_the_next_one_tidies_up(sandbox: Sandbox) -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        box = int(owner.stdout.readline())
        owner.kill()
    until = time.monotonic() + 15
    while Path(f"/proc/{box}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{box}").exists()
    remove_leftovers(spawner.hierarchies)
    for where in spawner.hierarchies:
        assert [path.name for path in where.folder.glob(f"{PREFIX}{owner.pid}-*")] == []


def test_names_tell_whether_their_maker_is_alive() -> None:
    mine = new_name()
    assert not is_abandoned(mine)
    # The same process number, started at another time: another process.
    pid, start = mine.split("-")[1:3]
    assert is_abandoned(f"{PREFIX}{pid}-{int(start) + 1}-0")
    assert not is_abandoned("sparring-error-x")
    assert not is_abandoned("other")


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(sandbox: Sandbox) -> None:
    folder = Path(tempfile.gettempdir())
    dead, alive = folder / f"{PREFIX}{os.getpid()}-1-0-x", folder / f"{new_name()}-x"
    dead.mkdir()
    alive.mkdir()
    try:
        assert remove_leftovers(spawner.hierarchies) >= 1
        assert (dead.exists(), alive.exists()) == (False, True)
    finally:
        alive.rmdir()


def test_control_groups_that_cannot_be_made_leave_none(tmp_path: Path) -> None:
    for where in spawner.hierarchies[:1]:
        before = set(where.folder.iterdir())
        with pytest.raises(OSError):
            make_group(spawner.hierarchies, memory_bytes=1 << 30, processes=-5)
        assert set(where.folder.iterdir()) == before


def test_back_ends_are_never_replaced_by_weaker_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="allow_unsafe"):
        open_sandbox(backend="unsafe-local")
    with pytest.raises(UsageError, match=re.escape("choose from auto, bubblewrap, gvisor, docker, unsafe-local")):
        open_sandbox(backend="firejail")  # type: ignore[arg-type]
    from sparring.sandbox import sandbox as module

    monkeypatch.setattr(module, "_problem_with", lambda name, setup: f"{name} is broken.")
    with pytest.raises(UsageError) as refused:
        open_sandbox()
    assert all(f"{name} is broken" in str(refused.value) for name in ("bubblewrap", "gvisor", "docker"))
    assert "apt-get install bubblewrap" in str(refused.value)
    assert "user.max_user_namespaces" in str(refused.value)


def test_unsafe_local_is_marked_in_everything_it_returns() -> None:
    async def played() -> Execution:
        async with place.session({"a": "1"}) as box:
            return await box.run([sys.executable, "-c", "print(open('a').read())"])

    place = open_sandbox(backend="unsafe-local", allow_unsafe=True)
    run = asyncio.run(played())
    assert (run.stdout, run.backend) == ("1\n", "unsafe-local")
    assert not place.is_isolated
    assert place.enforcement.startswith("none")


def test_folders_and_interpreters_that_cannot_be_shown_inside_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="read_only"):
        open_sandbox(read_only=["relative"])
    hidden = tmp_path / "python"
    hidden.write_text("")
    hidden.chmod(0o700)
    with pytest.raises(UsageError, match="every user of this machine may read"):
        open_sandbox(python=str(hidden))


def test_limits_are_checked() -> None:
    with pytest.raises(UsageError, match="processes is 0"):
        Limits(processes=0)
    with pytest.raises(UsageError, match="memory_mib is 8"):
        Limits(memory_mib=8)


def test_more_folders_can_be_read_inside_and_not_written(sandbox: Sandbox) -> None:
    with tempfile.TemporaryDirectory(dir="/opt" if os.access("/opt", os.W_OK) else None) as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "shared.txt").write_text("seen")
        code = f"import os\nprint(open({folder!r} + '/shared.txt').read(), os.access({folder!r}, os.W_OK))"

        async def played() -> str:
            async with open_sandbox(read_only=[folder]).session() as box:
                return (await python(box, code)).stdout

        assert asyncio.run(played()) == "seen False\n"


def test_the_root_of_a_container_with_one_user_id_runs_sandboxes_like_another_user() -> None:
    assert owns_user_ids("         0          0 4294967295\n")
    assert owns_user_ids("0 100000 65536")
    assert not owns_user_ids("0 1000 1\n")
    assert not owns_user_ids("0 1000 1\n1 100000 60000\n")
    code = (
        "import asyncio; from sparring.sandbox import open_sandbox\n"
        "async def main():\n"
        "    async with open_sandbox(backend='bubblewrap').session() as box:\n"
        "        print((await box.run(['python3', '-c', 'print(6 * 7)'])).stdout)\n"
        "asyncio.run(main())"
    )
    if shutil.which("bwrap") is None:
        pytest.skip("no sandbox works on this machine: bubblewrap is not installed")
    alone = ["unshare", "--user", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("no user namespace can be made on this machine")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run(
        [*alone, sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert ran.stdout.strip() == "42", ran.stderr
