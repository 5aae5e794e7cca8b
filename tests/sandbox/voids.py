"""Programs that break the box they run in, so that their failure would be taken for an outage and not count.

Each runs before a wrong answer. A step that follows (unit tests, collecting, writing, grading) comes through if it ends in
another way than after an honest wrong answer: the answer passes, or an error is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from sparring.environments.execution import graded
from sparring.errors import SparringError
from sparring.sandbox import Box, Limits, Sandbox
from sparring.sandbox.box import Content
from sparring.scorers.unit_tests import run_tests

LIMITS = Limits(seconds=10.0, memory_mib=128, disk_mib=16, shared_memory_mib=8, processes=32, files=500)
TESTS = """
import solution
def test_sum(): assert solution.add(2, 3) == 5
def test_zero(): assert solution.add(-1, 1) == 0
"""
RIGHT = "\ndef add(a, b): return a + b\nopen('answer', 'w').write('5')\n"
WRONG = "\ndef add(a, b): return 7\nopen('answer', 'w').write('7')\n"
GRADER = "verdict(open('artefacts/answer').read() == '5')"

_PRELUDE = """
import ctypes, os, resource, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(action, *arguments):
    try: return action(*arguments)
    except BaseException: return None
def call(number, *arguments):
    return libc.syscall(number, *[ctypes.c_long(argument) for argument in arguments])
"""
_CHILDREN = """
def children(number, action):
    for _ in range(number):
        if attempt(os.fork) == 0:
            attempt(action)
            os._exit(0)
"""
_RESOURCES = ("CPU", "FSIZE", "DATA", "STACK", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS", "SIGPENDING", "NICE")
_LEAVE = "\nos._exit(0)"

VOIDS: Mapping[str, str] = {
    **{
        f"limit {name} of the first process": f"attempt(resource.prlimit, 1, resource.RLIMIT_{name}, (0, 0)){_LEAVE}"
        for name in _RESOURCES
    },
    "limit everything of every process": "for pid in range(1, 50):\n for n in range(16): attempt(resource.prlimit, pid, n, (0, 0))" + _LEAVE,
    "kill the first process": "for n in range(1, 65): attempt(os.kill, 1, n)" + _LEAVE,
    "kill everything": "attempt(os.kill, -1, 9)" + _LEAVE,
    "stop the first process": "for n in (19, 20, 21, 22): attempt(os.kill, 1, n)" + _LEAVE,
    "kill it by a descriptor": "f = attempt(os.pidfd_open, 1)\nattempt(signal.pidfd_send_signal, f, 9)" + _LEAVE,
    "kill its threads": "for n in (9, 11, 19): call(200, 1, n); call(234, 1, 1, n)" + _LEAVE,
    "bury it in signals": "end = time.time() + 0.5\nwhile time.time() < end: attempt(os.kill, 1, 17)" + _LEAVE,
    "signal it when a file is ready": "import fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, 1)\nfcntl.fcntl(r, 10, 9)\nfcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)\nos.write(w, b'x')" + _LEAVE,
    "starve the first process": "for who in (0, 1, 2):\n for n in (0, 1, os.getuid()): attempt(os.setpriority, who, n, 19)\nattempt(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))\nattempt(os.sched_setaffinity, 1, {0})\nfor n in range(3): call(251, n, 1, 3 << 13)" + _LEAVE,
    "trace the first process": "call(101, 16, 1, 0, 0); call(101, 0x4206, 1, 0, 0)" + _LEAVE,
    "write into its memory": "f = attempt(open, '/proc/1/mem', 'r+b')\ncall(311, 1, 0, 0, 0, 0, 0)" + _LEAVE,
    "write into its channel": "for n in range(64):\n for flag in (1, 2): f = attempt(os.open, f'/proc/1/fd/{n}', flag); attempt(os.write, f, b'X\\0\\0\\0\\1X' * 99)\nfor n in range(64): attempt(os.write, n, b'.\\0\\0\\0\\0' * 99)" + _LEAVE,
    "take its descriptors": "p = attempt(os.pidfd_open, 1)\nfor n in range(9): call(438, p or -1, n, 0)" + _LEAVE,
    "offer it to the kernel": "for pid in (1, os.getpid()):\n f = attempt(open, f'/proc/{pid}/oom_score_adj', 'w'); attempt(print, '1000' if pid == 1 else '0', file=f, flush=True)\na = [bytearray(8 << 20) for n in range(64)]" + _LEAVE,
    "lock the work folder": "os.chmod('.', 0)" + _LEAVE,
    "lock a folder": "os.mkdir('d'); os.mkdir('d/e'); os.chmod('d/e', 0); os.chmod('d', 0)" + _LEAVE,
    "lock the answer": "open('answer', 'w').close(); os.chmod('answer', 0)" + _LEAVE,
    "deep folders with long names": "for n in range(450): os.mkdir('d' * 60); os.chdir('d' * 60)" + _LEAVE,
    "1,500 deep folders": "for n in range(1500): os.mkdir('d' * 60); os.chdir('d' * 60)" + _LEAVE,
    "a file below 15 folders": "os.makedirs('d/' * 15); open('d/' * 15 + 'f', 'w').close()" + _LEAVE,
    "a name of 505 characters": "os.makedirs('d' * 250 + '/' + 'e' * 250); open('d' * 250 + '/' + 'e' * 250 + '/fff', 'w').close()" + _LEAVE,
    "names that are no text": "for n in (b'\\xff\\xfe', b'a\\n', b'\\xed\\xa0\\x80', b'-rf', b'\\x1b[2J', b' '): open(n, 'w').close()" + _LEAVE,
    "a folder of a file's name": "os.makedirs('a.txt/answer'); os.mkdir('answer')" + _LEAVE,
    "a file of a folder's name": "open('grade', 'w').close()" + _LEAVE,
    "links of files' names": "os.symlink('/etc/passwd', 'a.txt'); os.symlink('/proc/self', 'grade'); os.symlink('answer', 'answer')" + _LEAVE,
    "pipes of files' names": "os.mkfifo('a.txt'); os.mkfifo('answer'); os.mkfifo('grade')" + _LEAVE,
    "sockets of files' names": "for n in ('a.txt', 'answer'): socket.socket(socket.AF_UNIX).bind(n)" + _LEAVE,
    "a full disk": "f = open('big', 'wb')\nwhile attempt(f.write, bytes(1 << 16)): pass\nf = open('small', 'wb')\nwhile attempt(os.write, f.fileno(), b'x'): pass" + _LEAVE,
    "full shared memory": "f = open('/dev/shm/big', 'wb', buffering=0)\nwhile attempt(f.write, bytes(1 << 16)): pass" + _LEAVE,
    "a huge folder": "for n in range(20000): os.close(os.open(f'f{n}', 65))" + _LEAVE,
    "many attributes": "open('f', 'w').close()\nfor n in range(4000): attempt(os.setxattr, 'f', f'user.{n}', b'x' * 999)" + _LEAVE,
    "a file of 1 TiB with nothing in it": "open('answer', 'w').truncate(1 << 40)" + _LEAVE,
    "files that fit no other box": "for n in range(200): open(f'f{n}', 'w').truncate(1 << 15)" + _LEAVE,
    "no files at all": "import shutil\nfor n in os.listdir(): attempt(shutil.rmtree, n); attempt(os.unlink, n)\nattempt(os.rmdir, '/work')" + _LEAVE,
    "all memory": "a = []\nwhile True: a.append(bytearray(1 << 24))",
    "all memory, in processes that look small": _CHILDREN + "def eat():\n attempt(lambda: open('/proc/self/oom_score_adj', 'w').write('0'))\n a = bytearray(6 << 20); time.sleep(0.5)\nchildren(30, eat)\ntime.sleep(0.3)" + _LEAVE,
    "processes without end": "while True: attempt(os.fork)",
    "threads without end": "while True: attempt(lambda: threading.Thread(target=time.sleep, args=(9,), daemon=True).start())",
    "daemons that stay": _CHILDREN + "def stay():\n os.setsid()\n if os.fork(): os._exit(0)\n os.closerange(0, 99)\n time.sleep(99)\nchildren(9, stay)" + _LEAVE,
    "a daemon that goes on changing files": _CHILDREN + "def change():\n os.setsid()\n while True: attempt(os.mkdir, 'a.txt'); attempt(os.rmdir, 'a.txt'); open('answer', 'w').truncate(9)\nchildren(3, change)" + _LEAVE,
    "stopped children": _CHILDREN + "children(9, lambda: os.kill(os.getpid(), 19))\ntime.sleep(0.1)" + _LEAVE,
    "a hang": "for n in range(1, 65): attempt(signal.signal, n, signal.SIG_IGN)\nwhile True: time.sleep(9)",
    "output without end": "while True: attempt(os.write, 2, b'x' * 65536)",
    "descriptors in flight": "a, b = socket.socketpair()\nfor n in range(200): attempt(socket.send_fds, a, [b'x'], [b.fileno()] * 200)" + _LEAVE,
    "watches, keys and queues": "for n in range(999): attempt(libc.inotify_init)\nfor n in range(99): call(248, 0, 0, 0, 0); call(250, 1, 0); call(68, n, 512); call(64, n, 9, 512); call(29, n, 4096, 512)" + _LEAVE,
    "locks and leases": "import fcntl\nf = open('answer', 'w')\nfcntl.flock(f, 2); attempt(fcntl.fcntl, f, 1024, 1); attempt(fcntl.lockf, f, 2); time.sleep(0.1)" + _LEAVE,
    "files that cannot be changed": "import fcntl\nf = open('a.txt', 'w')\nfor n in (0x10, 0x20): attempt(fcntl.ioctl, f, 0x40086602, n.to_bytes(8, 'little'))\nos.chmod('.', 0o1777)" + _LEAVE,
    "no rights for new files": "libc.setxattr(b'.', b'system.posix_acl_default', b'\\2\\0\\0\\0' + b''.join(bytes((n, 0, 0, 0, 255, 255, 255, 255)) for n in (1, 4, 32)), 28, 0)" + _LEAVE,
    "another namespace": "call(272, 0x10000000); call(161, 0); call(165, 0, 0, 0, 0, 0); call(166, 0, 2)" + _LEAVE,
    "an exit like that of a killed box": "os._exit(137)",
    "death by a signal": "os.kill(os.getpid(), 9)",
    "links in a circle": "os.symlink('.', 'loop'); os.mkdir('d'); os.symlink('../d', 'd/d'); os.symlink('b', 'a.txt'); os.symlink('a.txt', 'b')" + _LEAVE,
    "hard links": "open('f', 'w').close()\nfor n in range(99): attempt(os.link, 'f', f'l{n}')\nfor n in ('/etc/passwd', '/proc/self/mem', '/usr/bin/python3'): attempt(os.link, n, 'answer')" + _LEAVE,
    "devices of files' names": "for n in ('answer', 'a.txt', 'd'):\n for kind in (0o020000, 0o060000): attempt(os.mknod, n, kind | 0o666, os.makedev(1, 5))" + _LEAVE,
    "names of 255 bytes": "for n in range(400): open(f'{n:03}' + '\U0001f600' * 63, 'w').close()" + _LEAVE,
    "a folder instead of the work folder": "attempt(os.rename, '/work', '/tmp/w'); attempt(os.rename, '.', '.tmp/w'); attempt(os.rmdir, '.tmp'); open('.tmp', 'w').close()" + _LEAVE,
    "times of another age": "open('answer', 'w').close()\nfor when in (-2**62, 2**62, 0): attempt(os.utime, 'answer', ns=(when, when)); attempt(os.utime, '.', ns=(when, when))" + _LEAVE,
    "a set-user file without rights": "open('answer', 'w').close(); os.chmod('answer', 0o6000); os.chmod('.', 0o3000)" + _LEAVE,
    "output up to the limit": "for n in range(64): attempt(os.write, 1, b'x' * 4095)\ntime.sleep(0.3)" + _LEAVE,
    "input that is never read": "os.close(0); os.mkfifo('f'); os.open('f', os.O_RDWR); time.sleep(0.2)" + _LEAVE,
    "closed streams": "os.closerange(0, 4096)\ntime.sleep(0.2)" + _LEAVE,
    "a program of 1 MB": "x = '" + "y" * 1_000_000 + "'" + _LEAVE,
    "text that is no UTF-8": "x = '\ud800'" + _LEAVE,
}  # fmt: skip
"""Numbers of system calls are those of x86_64; elsewhere they are other calls, and the lines that need them weaker."""


STEPS: Mapping[str, str] = {"X17": "unit tests", "X18": "collect", "X19": "write and run", "X20": "grade"}
"""What follows after a program in its box, by the number of the kind of lines."""
HONEST = {"unit tests": "failed", "collect": "done", "write and run": "written", "grade": "wrong"}
"""How each step ends after an honest wrong answer."""


async def steps(sandbox: Sandbox, breaking: str = "", answer: str = WRONG) -> dict[str, str]:
    """Return how each step ends after a program that first breaks its box and then answers."""
    code = _PRELUDE + breaking + answer
    ends: dict[str, str] = {}
    left: dict[str, Content] = {}

    async def step(name: str, doing: Awaitable[str]) -> None:
        try:
            ends[name] = await doing
        except (SparringError, OSError, ValueError) as error:
            ends[name] = repr(error)

    async def test() -> str:
        report = await run_tests(sandbox, code, TESTS, seconds=20, call_seconds=0.8)
        return "failed" if report.failures else "passed"

    async def collect(box: Box) -> str:
        left.update((await box.collect()).files)
        left.update((await box.collect(["answer", "a.txt/answer", "d/" * 15 + "f"])).files)
        return "done"

    async def write(box: Box) -> str:
        await box.write({"a.txt": "written", "grade/data.txt": "1"})
        return (await box.run(["cat", "a.txt"])).stdout

    async def grade() -> str:
        return "right" if (await graded(sandbox, GRADER, left)).value is True else "wrong"

    await step("unit tests", test())
    async with sandbox.session() as box:
        await box.run(["python3", "-B", "-"], stdin=code, seconds=0.8)
        await step("collect", collect(box))
        await step("write and run", write(box))
    await step("grade", grade())
    return ends


async def steps_through(sandbox: Sandbox, breaking: str) -> list[str]:
    """Return the steps that end in another way than after an honest wrong answer, and all of them if the program cannot
    be run."""
    try:
        ends = await steps(sandbox, breaking)
    except (SparringError, OSError, ValueError):
        return [*HONEST]
    return [name for name, end in ends.items() if end != HONEST[name]]
