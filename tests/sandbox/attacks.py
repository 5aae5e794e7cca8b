"""Attacks that are graded from outside: by what is left, how long it took, or whose verdict it is.

As with the probes, each has a control: the same attack where nothing stands against it has to come through.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sparring.environments.execution import graded
from sparring.sandbox import ArithmeticProblem, Limits, Sandbox, SqlDatabase, SqlError, calculate
from sparring.scorers.unit_tests import run_tests

LIMITS = Limits(seconds=20.0, memory_mib=192, disk_mib=32, shared_memory_mib=8, processes=32, files=500)
DEADLINE = 0.4
LATE = 5.0
"""Seconds after its deadline by which an execution must be over, on a machine with other work to do; the benchmark measures
how late it is on a quiet one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One line of the table: whether it comes through in a sandbox, and where there is none."""

    id: str
    name: str
    inside: Callable[[Sandbox], Awaitable[bool]]
    outside: Callable[[], bool]

    @property
    def needs_quiet(self) -> bool:
        """Whether it is about time or load, so that nothing else should run at the same time."""
        return self.id in ("X4", "X8", "X9", "X10", "X11")


def _came_through(stdout: str) -> bool:
    return "through" in stdout


def program(id: str, name: str, code: str) -> Attack:
    """A program that prints `through` when it got what it wanted; in a box of its own, for it may break it.

    A run that a limit ended did not come through: between two counts of the files a program may print before it is killed.
    """

    async def inside(sandbox: Sandbox) -> bool:
        async with sandbox.session() as box:
            run = await box.run(["python3", "-B", "-"], stdin=code, seconds=8)
            return _came_through(run.stdout) and run.ended == "exit"

    def outside() -> bool:
        # In memory, so that no slow disk is part of it.
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
            command = [sys.executable, "-I", "-B", "-c", code]
            run = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=60, start_new_session=True
            )
        return _came_through(run.stdout)

    return Attack(id=id, name=name, inside=inside, outside=outside)


_FILL = """
import os
name, size = {name!r}, {size}
try:
    with open(name, "wb", buffering=0) as file:
        for _ in range(size):
            file.write(bytes(1 << 20))
    print("through")
finally:
    os.path.exists(name) and os.unlink(name)
"""

_EIGHT = """
import os, time
for n in range(8):
    if os.fork() == 0:
        a = bytearray(60 << 20)
        a[::4096] = b"x" * len(a[::4096])
        open(f"d{n}", "w").close()
        time.sleep(60)
        os._exit(0)
while os.waitpid(-1, os.WNOHANG)[0] == 0:
    if sum(name[0] == "d" for name in os.listdir(".")) == 8:
        print("through", flush=True)
        break
    time.sleep(0.05)
os.killpg(0, 9)
"""
"""The parent waits until all hold their memory, or one was refused it."""

BOMBS = [
    program("X8", "300 processes", "import os, time\nfor n in range(300):\n    if os.fork() == 0: time.sleep(1); os._exit(0)\nprint('through')"),
    program("X8", "300 threads", "import threading, time\nfor n in range(300): threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\nprint('through')"),
    program("X8", "children of children", "import os, time\nfor n in range(7): os.fork()\nopen(f'p{os.getpid()}', 'w').close()\ntime.sleep(1)\nif len(os.listdir('.')) >= 128: print('through')"),
    program("X9", "600 MiB in one process", "a = bytearray(600 << 20)\na[::4096] = a[::4096]\nprint('through')"),
    program("X9", "480 MiB in eight processes", _EIGHT),
    program("X9", "480 MiB of anonymous shared memory", "import mmap\na = mmap.mmap(-1, 480 << 20)\nfor n in range(0, 480 << 20, 4096): a[n] = 1\nprint('through')"),
    program("X9", "fill the scratch folder", _FILL.format(name="big", size=64)),
    program("X9", "fill the scratch folder with many files", "for n in range(64):\n    with open(f'f{n}', 'wb') as f: f.write(bytes(1 << 20))\nprint('through')"),
    program("X9", "fill /tmp", _FILL.format(name="/tmp/attacked-big", size=64)),
    program("X9", "fill shared memory", _FILL.format(name="/dev/shm/attacked-big", size=64)),
    program("X9", "fill /dev", _FILL.format(name="/dev/attacked-big", size=64)) if os.geteuid() == 0 else None,
    program("X9", "a file of 1 TiB with nothing in it", "import os\nf = os.open('s', os.O_CREAT | os.O_WRONLY)\nos.ftruncate(f, 1 << 40)\nos.unlink('s')\nprint('through')"),
    program("X9", "5,000 files", "for n in range(5000): open(f'f{n}', 'w').close()\nprint('through')"),
    program("X9", "5,000 folders", "import os\nfor n in range(5000): os.mkdir(f'f{n}')\nprint('through')"),
    program("X9", "memory without a name", "import os\nf = os.memfd_create('m')\nfor n in range(300): os.write(f, bytes(1 << 20))\nprint('through')"),
    program("X9", "1,000 open files", "files = [open('/dev/null') for n in range(1000)]\nprint('through')"),
]  # fmt: skip


def endless(name: str, code: str, *, is_over_itself: bool = False) -> Attack:
    """A program that would go on: it must be over in time, with nothing left. `MARK` in its environment finds it outside."""

    async def inside(sandbox: Sandbox) -> bool:
        async with sandbox.session() as box:
            began = time.monotonic()
            run = await box.run(["python3", "-B", "-"], stdin=code, seconds=DEADLINE)
            seconds = time.monotonic() - began
            if seconds > DEADLINE + LATE or (run.ended == "exit" and not is_over_itself):
                return True
            if len(run.stdout) > box.limits.output_kib * 1024:
                return True
            if box.limits != sandbox.limits or run.scratch_lost:
                return False
            after = await box.run(["python3", "-B", "-c", _NEIGHBOURS])
            return after.stdout != "[]\n"

    def outside() -> bool:
        marked = {**os.environ, "MARK": "endless"}
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-c", code],
                env=marked,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                process.wait(DEADLINE + 0.3)
            except subprocess.TimeoutExpired:
                return True
            else:
                return bool(_marked())
            finally:
                # The whole group in one system call: who forks and exits is never where a list of processes shows it. What left
                # the group does not fork.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)
                deadline = time.monotonic() + 5
                while left := _marked():
                    for pid in left:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    assert time.monotonic() < deadline, f"{name} goes on outside as {left}"

    return Attack(id="X10", name=name, inside=inside, outside=outside)


_NEIGHBOURS = """
import os
print([pid for pid in map(int, filter(str.isdigit, os.listdir('/proc'))) if pid not in (1, os.getpid())])
"""


def _marked() -> list[int]:
    """Living processes that were started with MARK=endless."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_marked = b"MARK=endless" in (folder / "environ").read_bytes().split(b"\0")
            if is_marked and ") Z " not in (folder / "stat").read_text():
                found.append(int(folder.name))
    return found


ENDLESS = [
    endless("a loop without end", "while True: pass"),
    endless("sleep for ever", "import time\ntime.sleep(1e6)"),
    endless("ignore every signal", "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: time.sleep(1)"),
    endless("stop itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
    endless("wait for input that never comes", "import os\nr, w = os.pipe()\nos.read(r, 1)"),
    endless("a daemon", "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.closerange(0, 3)\n        time.sleep(1e6)\n    os._exit(0)", is_over_itself=True),
    endless("a child that keeps the output open", "import os, time\nif os.fork() == 0: time.sleep(1e6)", is_over_itself=True),
    endless("print for ever", "while True: print('x' * 100000)"),
    endless("print for ever in single bytes", "import os\nwhile True: os.write(1, b'x')"),
    endless("fork for ever", "import os, time\nif os.fork() == 0:\n    while True:\n        if os.fork(): os._exit(0)\ntime.sleep(9)"),
    endless("a regular expression", "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')"),
    endless("a power", "9 ** 9 ** 9"),
]  # fmt: skip


async def _kill_everything(sandbox: Sandbox) -> bool:
    """With signals to all, to the group and to the first process."""
    decoy = subprocess.Popen(["sleep", "60"], start_new_session=True)
    code = (
        "import os, signal\nfor target in (1, 0, -1, PID, -PID):\n for number in (9, 2, 19, 15):\n"
        "  try:\n   signal.signal(number, signal.SIG_IGN) if number in (2, 15) else 0\n   os.kill(target, number)\n"
        "  except OSError: pass\n"
    )
    try:
        async with sandbox.session() as box:
            # Each target from a process of its own, since it hits itself too. Where the first process can be killed, a new
            # box answers the next one.
            for target in ("1", "-1", "PID", "-PID"):
                await box.run(
                    [
                        "python3",
                        "-c",
                        code.replace("(1, 0, -1, PID, -PID)", f"({target},)").replace("PID", str(decoy.pid)),
                    ],
                    seconds=3,
                )
            alive = await box.run(["echo", "alive"])
        return decoy.poll() is not None or alive.stdout != "alive\n"
    finally:
        decoy.kill()
        decoy.wait()


def _kill_decoy() -> bool:
    decoy = subprocess.Popen(["sleep", "60"], start_new_session=True)
    subprocess.run([sys.executable, "-c", f"import os; os.kill({decoy.pid}, 9)"], check=True)
    return decoy.wait(10) == -signal.SIGKILL


async def _slow_neighbour(sandbox: Sandbox) -> bool:
    """Whether a fork bomb in one box makes another box's executions fail or take for ever."""
    async with sandbox.session() as quiet, sandbox.session() as loud:
        bomb = asyncio.create_task(
            loud.run(
                ["python3", "-c", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"], seconds=1.5
            )
        )
        runs = [await quiet.run(["python3", "-c", "print(1)"], seconds=10) for _ in range(3)]
        await bomb
    return not all(run.is_success for run in runs)


CANARIES = {
    "a file": ("open('canary', 'w').close()", "os.path.exists('canary')"),
    "a file in /tmp": ("open('/tmp/canary-x', 'w').close()", "os.path.exists('/tmp/canary-x')"),
    "shared memory": ("open('/dev/shm/canary-x', 'w').close()", "os.path.exists('/dev/shm/canary-x')"),
    "a process": (
        "os.environ['CANARY'] = 'x'; subprocess.Popen(['sleep', '31.25'])",
        "any(b'31.25' in command(p) for p in glob.glob('/proc/[0-9]*') if p != f'/proc/{os.getpid()}')",
    ),
    "an abstract socket": ("hold('\\0canary-x', socket.AF_UNIX)", "b'canary-x' in open('/proc/net/unix', 'rb').read()"),
    "a port": ("hold(('127.0.0.1', 47193), socket.AF_INET)", "b':B859 ' in open('/proc/net/tcp', 'rb').read()"),
}
_LEAVE = """
import glob, os, socket, subprocess, sys, time
def hold(address, family):
    s = socket.socket(family); s.bind(address); s.listen()
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(4)
        os._exit(0)
def command(process):
    try: return open(process + '/cmdline', 'rb').read()
    except OSError: return b''  # it has ended since
"""


def canary(name: str) -> Attack:
    leave, look = CANARIES[name]
    leaving, looking = f"{_LEAVE}{leave}", f"{_LEAVE}print('through' if {look} else 'nothing')"

    async def inside(sandbox: Sandbox) -> bool:
        """Look from a second box while it runs, and from one after it, which may have the same user id."""
        async with sandbox.session() as first, sandbox.session() as second:
            running = asyncio.create_task(first.run(["python3", "-c", leaving + "\ntime.sleep(0.5)"]))
            await asyncio.sleep(0.25)
            seen = [await second.run(["python3", "-c", looking])]
            await running
        async with sandbox.session() as after:
            seen.append(await after.run(["python3", "-c", looking]))
        return any(run.stdout != "nothing\n" for run in seen)

    def outside() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [sys.executable, "-c", leaving],
                cwd=folder,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            run = subprocess.run(
                [sys.executable, "-c", looking], cwd=folder, check=True, capture_output=True, text=True
            )
        for path in ("/tmp/canary-x", "/dev/shm/canary-x"):
            Path(path).unlink(missing_ok=True)
        for folder_of in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if b"sleep\x0031.25" in (folder_of / "cmdline").read_bytes():
                    os.kill(int(folder_of.name), signal.SIGKILL)
        return _came_through(run.stdout)

    return Attack(id="X11", name=f"find {name} of another episode", inside=inside, outside=outside)


TESTS = """
import solution
def test_sum(): assert solution.add(2, 3) == 5
def test_zero(): assert solution.add(-1, 1) == 0
"""
_JUDGE = """
import sys
sys.path.insert(0, ".")
import solution
import tests
for name, test in list(vars(tests).items()):
    if name.startswith("test_"):
        test()
"""
"""The usual grader: candidate and tests in one process, graded by its exit code."""
_WRONG = "\ndef add(a, b): return None\n"
TAMPERINGS: Mapping[str, str] = {
    "exit while it is loaded": "import os; os._exit(0)",
    "exit politely": "import sys; sys.exit(0)",
    "exit from inside a call": "import os\ndef add(a, b): os._exit(0)",
    "exit by an exception": "def add(a, b): raise SystemExit(0)",
    "exit at the end": "import atexit, os\natexit.register(os._exit, 0)" + _WRONG,
    "exit by a hook for errors": "import os, sys\nsys.excepthook = lambda *_: os._exit(0)" + _WRONG,
    "become another program": "import os\nos.execv('/bin/true', ['true'])",
    "a value that equals everything": "class E:\n    def __eq__(self, other): return True\ndef add(a, b): return E()",
    "a number that equals everything": "class E(int):\n    def __eq__(self, other): return True\ndef add(a, b): return E()",
    "a list that equals everything": "class E(list):\n    def __eq__(self, other): return True\ndef add(a, b): return E()",
    "edit the tests": "open('tests.py', 'w').write('')" + _WRONG,
    "put other tests in their place": "import sys, types\nsys.modules['tests'] = types.ModuleType('tests')" + _WRONG,
    "take the tests out by their frame": "import sys\ndef add(a, b):\n    raise SystemExit(0)",
    "replace what is asserted": "import sys\ndef add(a, b):\n    f = sys._getframe(1)\n    f.f_globals['solution'].add = lambda a, b: {2: 5, -1: 0}.get(a if isinstance(a, int) else 0, [1, 2])\n    return add.__globals__['add'](a, b)",
    "replace the tests' code": "import sys\ndef add(a, b):\n    g = sys._getframe(1).f_globals\n    for n in list(g):\n        if n.startswith('test_'): g[n].__code__ = (lambda: None).__code__\n    import os; os._exit(0)",
    "a tracer that leaves": "import os, sys\nsys.settrace(lambda f, e, a: os._exit(0) if f.f_code.co_name == 'test_sum' else None)"
    + _WRONG,
    "a tracer of threads that leaves": "import os, sys, threading\nthreading.Timer(0.0, os._exit, (0,)).start()\nimport time\ndef add(a, b): time.sleep(1)",
    "an alarm that leaves": "import os, signal, time\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\ndef add(a, b): time.sleep(1)",
    "patch the import of the tests": "import builtins, types\nreal = builtins.__import__\nbuiltins.__import__ = lambda n, *a, **k: types.ModuleType(n) if n == 'tests' else real(n, *a, **k)"
    + _WRONG,
    "patch what names are listed": "import builtins\nbuiltins.vars = lambda *a: {}" + _WRONG,
    "patch the list of names": "import builtins\nbuiltins.list = lambda *a: []" + _WRONG,
    "a finder of modules": "import sys, types, importlib.machinery as m\nclass F:\n    @staticmethod\n    def find_spec(n, p=None, t=None):\n        return m.ModuleSpec(n, F) if n == 'tests' else None\n    create_module = staticmethod(lambda s: None)\n    exec_module = staticmethod(lambda m: None)\nsys.meta_path.insert(0, F)"
    + _WRONG,
    "say that all passed": 'import os\nfor n in range(20):\n    for m in (b\'{"passed": true, "text": ""}\', b\'{"tests": []}\', b\'{"ready": true, "value": "5"}\'):\n        try: os.write(n, b\'\\n\' + m + b\'\\n\')\n        except OSError: pass\nos._exit(0)',
    "answer before it is asked": "import os\nos.write(1, b'PASSED\\n' * 100)\nos._exit(0)",
    "a child that goes on": "import os, time\nif os.fork() == 0: time.sleep(3)\nos._exit(0)",
    "an answer that is nested deep": "import os\nfor n in range(3, 20):\n    try: os.write(n, b'{\"value\": \"' + b'[' * 50000 + b'\"}\\n')\n    except OSError: pass\nos._exit(0)",
}


def tampering(name: str) -> Attack:
    candidate = TAMPERINGS[name]

    async def inside(sandbox: Sandbox) -> bool:
        report = await run_tests(sandbox, candidate, TESTS, call_seconds=0.5, seconds=20)
        return not report.failures

    def outside() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            for file, content in {"solution.py": candidate, "tests.py": TESTS, "judge.py": _JUDGE}.items():
                (Path(folder) / file).write_text(content)
            command = [sys.executable, "-I", "-B", "judge.py"]
            run = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=20,
            )
        return run.returncode == 0

    return Attack(id="X13", name=name, inside=inside, outside=outside)


async def _artefact_modules(sandbox: Sandbox) -> bool:
    """Whether artefacts named like modules of the standard library get into the grader."""
    forged = "print('\\n' + '0' * 32 + 'true')\nimport os\nos._exit(0)"
    names = ("json.py", "sitecustomize.py", "conftest.py", "usercustomize.py", "encodings/__init__.py")
    verdict = await graded(
        sandbox, "import os, json\nverdict(len(os.listdir('artefacts')) == 0)", dict.fromkeys(names, forged)
    )
    return verdict.value is not False


def _import_from_the_folder() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "json.py").write_text("import os\nos._exit(7)")
        (Path(folder) / "main.py").write_text("import json")
        return subprocess.run([sys.executable, "main.py"], cwd=folder).returncode == 7


def artefact(
    name: str,
    make: str,
    wanted: Sequence[str] | None,
    stolen: Callable[[Mapping[str, bytes]], bool],
    naive: Callable[[Path], bool],
) -> Attack:
    """Something in the scratch folder that must not mislead the code that collects it."""

    async def inside(sandbox: Sandbox) -> bool:
        async with sandbox.session() as box:
            await box.run(["python3", "-c", make], seconds=5)
            began = time.monotonic()
            collected = await box.collect(wanted, max_files=50, max_bytes=1 << 20)
            return stolen(collected.files) or time.monotonic() - began > 5

    def outside() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-c", make], cwd=folder, check=True)
            return naive(Path(folder))

    return Attack(id="X14", name=name, inside=inside, outside=outside)


def _hangs(path: Path) -> bool:
    try:
        subprocess.run(["cat", str(path)], timeout=0.5, capture_output=True)
    except subprocess.TimeoutExpired:
        return True
    return False


_USERS = Path("/etc/passwd").read_bytes()
ARTEFACTS = [
    artefact("a link to a file of the machine", "import os; os.symlink('/etc/passwd', 'a')", ["a"], lambda f: "a" in f, lambda p: (p / "a").read_bytes() == _USERS),
    artefact("a folder that is a link", "import os; os.symlink('/etc', 'd')", ["d/passwd"], lambda f: bool(f), lambda p: (p / "d/passwd").read_bytes() == _USERS),
    artefact("a link out of the folder", "import os; os.symlink('../../../../etc/passwd', 'a')", None, lambda f: "a" in f, lambda p: (p / "a").is_symlink()),
    artefact("a link to a process's files", "import os; os.symlink('/proc/self/environ', 'a')", ["a"], lambda f: "a" in f, lambda p: len((p / "a").read_bytes()) > 0),
    artefact("a link to itself", "import os; os.symlink('.', 'd')", None, lambda f: any("/" in n for n in f), lambda p: (p / "d/d/d/d").exists()),
    artefact("a pipe without a writer", "import os; os.mkfifo('a')", ["a"], lambda f: "a" in f, lambda p: _hangs(p / "a")),
    artefact("a file of 1 GiB with nothing in it", "import os; f = open('a', 'wb'); os.truncate('a', 1 << 30) if os.getpid() else 0", ["a"], lambda f: len(f.get("a", b"")) > 1 << 20, lambda p: (p / "a").stat().st_size == 1 << 30),
    artefact("a file larger than what is wanted", "open('a', 'wb').write(bytes(3 << 20))", ["a"], lambda f: "a" in f, lambda p: len((p / "a").read_bytes()) == 3 << 20),
    artefact("more files than are wanted", "for n in range(500): open(f'f{n}', 'w').close()", None, lambda f: len(f) > 50, lambda p: len(list(p.iterdir())) == 500),
    artefact("a name that is no text", "open(b'\\xff\\xfe', 'w').close()", None, lambda f: bool(f), lambda p: any(os.fsencode(n) == b"\xff\xfe" for n in os.listdir(p))),
    artefact("a socket", "import socket; socket.socket(socket.AF_UNIX).bind('a')", ["a"], lambda f: "a" in f, lambda p: (p / "a").is_socket()),
]  # fmt: skip

_ENDLESS_CTE = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
SQL: Mapping[str, str] = {
    "insert": "INSERT INTO parts VALUES (3, 'x')",
    "update": "UPDATE parts SET name = 'x'",
    "delete": "DELETE FROM parts",
    "drop": "DROP TABLE parts",
    "create": "CREATE TABLE other (a)",
    "create in memory for the session": "CREATE TEMP TABLE other (a)",
    "attach a file": "ATTACH 'FOLDER/made.sqlite' AS other",
    "copy into a file": "VACUUM INTO 'FOLDER/copy.sqlite'",
    "change a setting": "PRAGMA writable_schema = 1",
    "read a setting": "PRAGMA database_list",
    "begin a transaction": "BEGIN IMMEDIATE",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON parts BEGIN SELECT 1; END",
    "a large value": "SELECT length(zeroblob(600000000))",
    "a large text": "SELECT length(replace(hex(zeroblob(5000000)), '0', 'xx'))",
    "count for ever": f"{_ENDLESS_CTE} SELECT count(*) FROM c",
    "a product of tables": "SELECT count(*) FROM parts a, parts b, parts c, parts d, parts e, parts f, parts g, parts h",
    "a number from chance": "SELECT random()",
    "more rows than can be read": f"{_ENDLESS_CTE} SELECT x FROM c LIMIT 1000000",
    "a width of millions": "SELECT length(printf('%.90000000d', 1))",
}


def sql(name: str) -> Attack:
    query = SQL[name]
    rows = [{"id": number, "name": "bolt"} for number in range(60)]

    async def inside(_: Sandbox) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            database = SqlDatabase({"parts": rows})
            began = time.monotonic()
            try:
                answer = database.query(query.replace("FOLDER", folder))
                is_through = len(answer) < 2 or "truncated" not in answer[-1]
            except SqlError:
                is_through = False
            is_late = time.monotonic() - began > database.limits.seconds + LATE
            is_changed = database.query("SELECT count(*) AS n, max(name) AS name FROM parts") != [
                {"n": 60, "name": "bolt"}
            ]
            database.close()
            return is_through or is_late or is_changed or bool(os.listdir(folder))

    def outside() -> bool:
        code = (
            "import sqlite3\ndb = sqlite3.connect(':memory:', isolation_level=None)\ndb.execute('CREATE TABLE parts (id, name)')\n"
            f"db.executemany('INSERT INTO parts VALUES (?, ?)', {[tuple(row.values()) for row in rows]!r})\n"
            "db.execute('QUERY').fetchall()\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            code = code.replace("'QUERY'", repr(query.replace("FOLDER", folder)))
            try:
                return (
                    subprocess.run([sys.executable, "-I", "-c", code], timeout=1.2, capture_output=True).returncode == 0
                )
            except subprocess.TimeoutExpired:
                return True

    return Attack(id="X15", name=f"SQL: {name}", inside=inside, outside=outside)


EXPRESSIONS: Mapping[str, str] = {
    "import a module": "__import__('os').getpid()",
    "a power of powers": "9**9**9**9",
    "a product of large numbers": "10**999 * 10**999 * 10**999",
    "shift by millions": "len(str(1 << 4000000)) if False else (1 << 4000000) * 0 + 1",
    "walk to every class": "().__class__.__bases__[0].__subclasses__()",
    "a lambda": "(lambda: 1)()",
    "a list of millions": "sum([1] * 50000000)",
    "a text of millions": "len('x' * 500000000)",
    "open a file": "open('/etc/passwd').read(1)",
    "a name that is bound": "[x := 7][0]",
}


def arithmetic(name: str) -> Attack:
    expression = EXPRESSIONS[name]

    async def inside(_: Sandbox) -> bool:
        began = time.monotonic()
        try:
            await calculate(expression)
        except ArithmeticProblem:
            return time.monotonic() - began > 1 + LATE
        return True

    def outside() -> bool:
        try:
            run = subprocess.run(
                [sys.executable, "-I", "-c", f"print(str(eval({expression!r}))[:20])"], timeout=2, capture_output=True
            )
        except subprocess.TimeoutExpired:
            return True
        # Computing it and failing only to print it counts: the work was done.
        return run.returncode == 0 or b"integer string conversion" in run.stderr

    return Attack(id="X16", name=f"arithmetic: {name}", inside=inside, outside=outside)


async def come_through(sandbox: Sandbox, attacks: Sequence[Attack]) -> list[str]:
    """Names of the attacks that succeed in a sandbox."""
    slots = asyncio.Semaphore(3)

    async def tried(attack: Attack) -> str | None:
        async with slots:
            return attack.name if await attack.inside(sandbox) else None

    quiet = [attack.name for attack in attacks if attack.needs_quiet and await attack.inside(sandbox)]
    rest = await asyncio.gather(*(tried(attack) for attack in attacks if not attack.needs_quiet))
    return quiet + [name for name in rest if name is not None]


def succeed_outside(attacks: Sequence[Attack]) -> list[str]:
    """The positive controls: names of the attacks that succeed where there is no sandbox."""
    # These look for what others of their kind leave too.
    alone = [attack.name for attack in attacks if attack.id in ("X10", "X11") and attack.outside()]
    with ThreadPoolExecutor(max_workers=4) as executor:
        rest = [attack for attack in attacks if attack.id not in ("X10", "X11")]
        through = list(executor.map(lambda attack: attack.outside(), rest))
    return alone + [attack.name for attack, is_through in zip(rest, through, strict=True) if is_through]


ATTACKS: list[Attack] = [
    Attack(id="X4", name="kill everything in sight", inside=_kill_everything, outside=_kill_decoy),
    *(bomb for bomb in BOMBS if bomb is not None),
    Attack(id="X8", name="starve another box", inside=_slow_neighbour, outside=lambda: True),
    *ENDLESS,
    *(canary(name) for name in CANARIES),
    *(tampering(name) for name in TAMPERINGS),
    Attack(id="X13", name="artefacts named as modules", inside=_artefact_modules, outside=_import_from_the_folder),
    *ARTEFACTS,
    *(sql(name) for name in SQL),
    *(arithmetic(name) for name in EXPRESSIONS),
]
