"""Hostile programs for a sandbox, as a table: each sets `got` when it came through.

A probe is Python that runs inside with `host`, facts about this machine that an attacker might know. Its positive control
is the same program outside, where it has to come through: a probe that cannot is no probe. Programs that would harm the
machine stop short of it: files are opened and not written, system calls get arguments that no kernel accepts.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.sandbox.seccomp import CLONE3, DENIED, OF_ONE_OR_MANY

CANARY = "SPARRING_CANARY_7193"
EXTRA = 200
"""A descriptor that a careless parent leaves open."""
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One line of the table."""

    id: str
    name: str
    code: str
    needs_root: bool = False
    """Whether the control comes through only as root."""
    allowed_in: tuple[str, ...] = ()
    """Back ends where it comes through and means nothing, or no more than documented: gVisor answers from the box's own
    kernel; Docker shows /sys, a host name of its own, and has no user namespace."""


def inside_programs(names: Mapping[str, str], host: Mapping[str, Any]) -> str:
    """One program that plays many: each in a process of its own, so that none can spoil the next; prints what came through."""
    return _RUNNER.replace("PROGRAMS", repr(dict(names))).replace("HOST", repr(dict(host)))


def outcomes(printed: str) -> dict[str, str]:
    """By name: "through", "absent" for what this machine's kernel was built without, or why not."""
    return json.loads(printed.splitlines()[-1])


_RUNNER = '''
import ctypes, json, os, select, signal, socket, struct, sys, time, errno, glob, stat
def read(path, mode="rb", size=4096):
    with open(path, mode) as file:
        return file.read(size)
def openable(path, flags):
    file = os.open(path, flags | os.O_NONBLOCK)
    os.close(file)
    return True
def readable(pattern):
    for path in glob.glob(pattern):
        try:
            yield read(path)
        except OSError:
            pass
class Absent(Exception):
    pass
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    """True when the kernel did more than refuse to look at it."""
    ctypes.set_errno(0)
    done = libc.syscall(number, *[ctypes.c_long(argument) for argument in arguments])
    if HOST["is_outside"] and ctypes.get_errno() == errno.ENOSYS:
        raise Absent
    return done != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)
def connected(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as one:
        one.settimeout(1)
        one.connect(address)
        one.sendall(b"x")
        return one.recv(1) == b"y"
def play(code, host):
    signal.alarm(5)
    space = {**globals(), "host": host}
    try:
        exec(code, space)
        return "through" if space.get("got") else "refused"
    except Absent:
        return "absent"
    except BaseException as error:
        return repr(error)[:100]
outcomes = {}
for name, code in PROGRAMS.items():
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        os.write(sink, play(code, HOST).encode())
        os._exit(0)
    os.close(sink)
    text = b""
    while select.select([source], [], [], 6)[0]:
        part = os.read(source, 4096)
        if not part:
            break
        text += part
    os.close(source)
    try:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    except OSError:
        status = 0
    outcomes[name] = text.decode() or "died of signal %d" % (status & 127)
print(json.dumps(outcomes))
'''


_ALLOWED = {
    "reach the channel of the first process": ("gvisor",),
    "see the machine's user ids": ("gvisor", "docker"),
    "make a character device": ("gvisor",),
    "make a block device": ("gvisor",),
    "read /etc/hostname": ("docker",),
    "list control groups": ("docker",),
    "list disks": ("docker",),
    "list users in /etc/passwd": ("docker",),
}


def _probes(id: str, *lines: tuple[str, str], needs_root: bool = False) -> list[Probe]:
    return [
        Probe(id=id, name=name, code=code, needs_root=needs_root, allowed_in=_ALLOWED.get(name, ()))
        for name, code in lines
    ]


def _disks() -> list[str]:
    """Block devices that root may open here."""
    return [path for path in glob.glob("/dev/[vsn][dv][a-z]*") if _can_open(path)][:1]


def _can_open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


READS = [
    *_probes(
        "X1",
        ("read a file of the user's", "got = read(host['secret'])"),
        ("list the folder of a file of the user's", "got = os.listdir(host['folder'])"),
        ("read the project", "got = read(host['project'])"),
        # By what it holds: the scratch folder inside may have the parent's name.
        ("list the parent of the project", "project = os.path.dirname(host['project'])\ngot = os.path.basename(project) in os.listdir(os.path.dirname(project))"),
        ("list the home folder", "got = os.listdir(host['home'])"),
        ("list /var/log", "got = os.listdir('/var/log')"),
        ("list /run", "got = os.listdir('/run')"),
        ("list the folder of temporary files", "got = host['folder_name'] in os.listdir('/tmp')"),
        ("read the name of the machine", "got = os.uname().nodename == host['nodename']"),
        ("read /etc/hostname", "got = read('/etc/hostname')"),
        ("list users in /etc/passwd", "got = b'root:' in read('/etc/passwd')"),
        ("connect to a socket of a service", "got = connected(socket.AF_UNIX, host['socket'])"),
        ("find the agent of SSH keys", "got = os.environ['SSH_AUTH_SOCK']"),
        ("find a secret in the environment", f"got = {CANARY!r} in str(os.environ)"),
        ("list control groups", "got = os.listdir('/sys/fs/cgroup')"),
        ("list network cards", "got = set(os.listdir('/sys/class/net')) - {'lo'}"),
    ),
    *_probes(
        "X1",
        ("read the passwords", "got = read('/etc/shadow')"),
        *(("open the disk " + disk, f"got = openable({disk!r}, os.O_RDONLY)") for disk in _disks()),
        needs_root=True,
    ),
    *_probes(
        "X2",
        ("read another process's environment", f"got = any({CANARY!r}.encode() in one for one in readable('/proc/[0-9]*/environ'))"),
        ("read another process's command", f"got = any({CANARY!r}.encode() in one for one in readable('/proc/[0-9]*/cmdline'))"),
        ("see a process of the machine", "got = os.path.exists(f\"/proc/{host['pid']}/status\") and "
         "'sh' in read(f\"/proc/{host['pid']}/comm\", 'r')"),
        ("open its memory", "got = openable(f\"/proc/{host['pid']}/mem\", os.O_RDWR)"),
        ("open the memory of the process that started this one", "got = openable(f'/proc/{os.getppid()}/mem', os.O_RDWR)"
         " and host['is_outside']"),
        ("see the root of another process", "got = os.listdir(f\"/proc/{host['pid']}/root/home\") is not None"),
        ("see the files that another process has open", "got = os.listdir(f\"/proc/{host['pid']}/fd\")"),
        ("read another process's current folder", "got = os.readlink(f\"/proc/{host['pid']}/cwd\")"),
        ("see the mounts of another process", "got = read(f\"/proc/{host['pid']}/mountinfo\")"),
    ),
    *_probes(
        "X2",
        *((f"open {path} to write", f"got = openable({path!r}, os.O_WRONLY)") for path in (
            "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname",
            "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/pid_max", "/proc/sys/fs/file-max",
            "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger", "/proc/sys/kernel/printk",
        ) if os.path.exists(path)),
        ("open the kernel's log", "got = openable('/dev/kmsg', os.O_RDONLY)"),
        ("open /proc/kmsg", "got = openable('/proc/kmsg', os.O_RDONLY)"),
        ("open a control group to write", "got = openable(glob.glob('/sys/fs/cgroup/**/cgroup.procs', recursive=True)[0], os.O_WRONLY)"),
        ("list disks", "got = os.listdir('/sys/block')"),
        ("read addresses of the kernel", "got = any(not line.startswith('0000000000000000') for line in open('/proc/kallsyms'))"),
        needs_root=True,
    ),
]  # fmt: skip

_CALLS: Mapping[str, tuple[int, ...]] = {
    "unshare": (0x00020000,), "setns": (-1, 0), "mount": (0, 0, 0, 0, 0), "umount2": (0, 0), "pivot_root": (0, 0),
    "chroot": (0,), "open_tree": (-1, 0, 0), "move_mount": (-1, 0, -1, 0, 0), "fsopen": (0, 0),
    "fsconfig": (-1, 99, 0, 0, 0), "fsmount": (-1, 0, 0), "fspick": (-1, 0, 0), "mount_setattr": (-1, 0, 0, 0, 0),
    "ptrace": (0, 0, 0, 0), "process_vm_readv": (0, 0, 0, 0, 0, 99), "process_vm_writev": (0, 0, 0, 0, 0, 99),
    "kcmp": (1 << 22, 1 << 22, 0, 0, 0), "pidfd_getfd": (-1, 0, 0), "process_madvise": (-1, 0, 0, 0, 0),
    "move_pages": (0, 0, 0, 0, 0, 99), "migrate_pages": (1 << 22, 1, 0, 0), "name_to_handle_at": (-1, 0, 0, 0, 99),
    "open_by_handle_at": (-1, 0, 0), "fanotify_init": (0xFFFF, 0), "fanotify_mark": (-1, 0, 0, 0, 0), "add_key": (0, 0, 0, 0, 0),
    "request_key": (0, 0, 0, 0), "keyctl": (0, -3, 0, 0, 0), "bpf": (0xFFFF, 0, 0), "io_uring_setup": (0, 0),
    "io_uring_enter": (-1, 0, 0, 0, 0, 0), "io_uring_register": (-1, 99, 0, 0), "userfaultfd": (0xFFFF,),
    "perf_event_open": (0, 0, 0, 0, 0), "personality": (0xFFFFFFFF,), "memfd_create": (0, 0xFFFF),
    "shmget": (1234567, 0, 0), "shmat": (-1, 0, 0), "msgget": (1234567, 0), "semget": (1234567, 0, 0), "mq_open": (0, 0, 0, 0),
    "set_mempolicy": (99, 0, 0), "mbind": (0, 4096, 99, 0, 0, 99),
}  # fmt: skip
"""Arguments that get past the first look and then fail, or do no harm to the process that dies right after."""

_CALLS_OF_ROOT: Mapping[str, tuple[int, ...]] = {
    "reboot": (0, 0, 0, 0), "kexec_load": (0, 0, 0, 0xFFFF), "init_module": (0, 0, 0), "delete_module": (0, 0),
    "finit_module": (-1, 0, 0xFFFF), "swapon": (0, 0), "swapoff": (0,), "settimeofday": (8, 0), "clock_settime": (0, 8),
    "clock_adjtime": (0, 8), "sethostname": (8, 4), "setdomainname": (8, 4), "acct": (8,),
    "quotactl_fd": (-1, 0, 0, 0), "syslog": (99, 0, 0),
}  # fmt: skip


def _call(name: str, arguments: tuple[int, ...]) -> tuple[str, str]:
    number = getattr(DENIED[name], platform.machine())
    return f"system call {name}", f"got = syscall({number}, {', '.join(map(str, arguments))})"


def _flagged_clone(name: str, flag: int) -> tuple[str, str]:
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    return f"clone with {name}", (
        f"pid = libc.syscall({number}, ctypes.c_long({flag} | 17), 0, 0, 0, 0)\nif pid == 0: os._exit(0)\ngot = pid > 0"
    )


_INT80 = """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("53b814000000cd805bc3"))
got = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() == os.getpid()
"""
"""getpid by the 32-bit calling convention, whose numbers are others: push rbx; mov eax, 20; int 0x80; pop rbx; ret."""

CALLS = [
    *_probes("X3", *(_call(name, arguments) for name, arguments in _CALLS.items())),
    *_probes("X3", *(_call(name, arguments) for name, arguments in _CALLS_OF_ROOT.items()), needs_root=True),
    *_probes(
        "X3",
        ("system call clone3", f"got = syscall({CLONE3.x86_64}, 0, 0)"),
        _flagged_clone("a new user namespace", 0x10000000),
        (
            "ioctl TIOCSTI",
            "import fcntl\ntry: fcntl.ioctl(1, 0x5412, b'x')\nexcept OSError as e: got = e.errno != errno.EPERM",
        ),
        (
            "ioctl TIOCLINUX",
            "import fcntl\ntry: fcntl.ioctl(1, 0x541C, b'x')\nexcept OSError as e: got = e.errno != errno.EPERM",
        ),
    ),
    *_probes(
        "X3",
        _flagged_clone("a new mount namespace", 0x00020000),
        _flagged_clone("a new process namespace", 0x20000000),
        _flagged_clone("a new network namespace", 0x40000000),
        needs_root=True,
    ),
    *(_probes("X3", ("a 32-bit system call", _INT80)) if platform.machine() == "x86_64" else []),
]

PROCESSES = [
    *_probes(
        "X4",
        ("signal a process of the machine", "os.kill(host['pid'], 0)\ngot = 'sh' in read(f\"/proc/{host['pid']}/comm\", 'r')"),
        ("signal its group", "os.killpg(host['group'], 0)\ngot = True"),
        ("hold it by a descriptor", "got = os.pidfd_open(host['pid']) and 'sh' in read(f\"/proc/{host['pid']}/comm\", 'r')"),
        ("change its priority", "os.setpriority(os.PRIO_PROCESS, host['pid'], 5)\ngot = True"),
        ("change its scheduling", "os.sched_setaffinity(host['pid'], os.sched_getaffinity(host['pid']))\ngot = True"),
        ("read its limits", "import resource\nresource.prlimit(host['pid'], resource.RLIMIT_CPU)\ngot = True"),
        ("limit the process that started this one", "import resource\npid = os.getppid()\nresource.prlimit(pid, resource.RLIMIT_CORE, resource.prlimit(pid, resource.RLIMIT_CORE))\ngot = True"),
        ("change its parent's priority", "os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()))\ngot = True"),
        ("change its group's priority", "os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PGRP, 0))\ngot = True"),
        ("change its parent's scheduler", "os.sched_setscheduler(os.getppid(), os.SCHED_BATCH, os.sched_param(0))\ngot = True"),
        ("change its parent's processors", "os.sched_setaffinity(os.getppid(), os.sched_getaffinity(os.getppid()))\ngot = True"),
        ("change its parent's disk priority", f"got = syscall({getattr(OF_ONE_OR_MANY['ioprio_set'][0], platform.machine())}, 1, os.getppid(), 2 << 13 | 4)"),
        ("find a terminal", "got = host['is_outside'] or openable('/dev/tty', os.O_RDWR)"),
    ),
    *_probes(
        "X5",
        ("run where new privileges are given", "got = b'NoNewPrivs:\\t0' in read('/proc/self/status')"),
        ("run without a filter of system calls", "got = b'Seccomp:\\t0' in read('/proc/self/status')", ),
        ("have a descriptor besides the standard ones", "got = os.path.exists('/proc/self/fd/200')"),
        ("reach the channel of the first process", "got = bool(os.readlink(f\"/proc/{1 if not host['is_outside'] else host['pid']}/fd/0\"))"),
        ("see the machine's user ids", "got = read('/proc/self/uid_map').split() == [b'0', b'0', b'4294967295']"),
        ("dump core", "import resource\ngot = resource.getrlimit(resource.RLIMIT_CORE)[1] != 0"),
    ),
    *_probes(
        "X5",
        ("be root", "got = os.geteuid() == 0"),
        ("become root", "os.setuid(0)\ngot = True"),
        ("be in a group of root's", "os.setgroups([0])\ngot = True"),
        ("have capabilities", "got = int(read('/proc/self/status').split(b'CapEff:')[1].split()[0], 16) != 0"),
        ("be able to get capabilities", "got = int(read('/proc/self/status').split(b'CapBnd:')[1].split()[0], 16) != 0"),
        ("open another user's file", "got = read(host['private'])"),
        ("give a file to root", "open('mine', 'w').close()\nos.chown('mine', 0, 0)\ngot = True"),
        needs_root=True,
    ),
    *_probes(
        "X6",
        ("write into /dev", "open('/dev/made', 'w').close()\nos.unlink('/dev/made')\ngot = True"),
        ("write into the root folder", "open('/made', 'w').close()\nos.unlink('/made')\ngot = True"),
        ("write into /etc", "open('/etc/made', 'w').close()\nos.unlink('/etc/made')\ngot = True"),
        ("write into /usr", "open('/usr/made', 'w').close()\nos.unlink('/usr/made')\ngot = True"),
        ("make a folder in /var", "os.mkdir('/var/made')\nos.rmdir('/var/made')\ngot = True"),
        ("open a system file to write", "got = openable('/usr/lib/os-release', os.O_WRONLY)"),
        ("change the mode of a system file", "os.chmod('/usr/lib/os-release', 0o644)\ngot = True"),
        ("touch a system file", "s = os.stat('/usr/lib/os-release')\nos.utime('/usr/lib/os-release', ns=(s.st_atime_ns, s.st_mtime_ns))\ngot = True"),
        ("link to a system file from its folder", "os.link('/usr/lib/os-release', '/usr/lib/made')\nos.unlink('/usr/lib/made')\ngot = True"),
        ("make a link in /usr", "os.symlink('/', '/usr/made')\nos.unlink('/usr/made')\ngot = True"),
        ("make a block device", "os.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(7, 0))\ngot = True"),
        ("make a character device", "os.mknod('mem', 0o600 | stat.S_IFCHR, os.makedev(1, 3))\ngot = openable('mem', os.O_RDONLY)"),
        needs_root=True,
    ),
]  # fmt: skip


def _opens(family: int, kind: int) -> bool:
    try:
        socket.socket(family, kind, 0).close()
    except OSError:
        return False
    return True


NETWORK = [
    *_probes(
        "X7",
        ("TCP to a service on loopback", "got = connected(socket.AF_INET, ('127.0.0.1', host['tcp']))"),
        ("TCP to a service on another loopback address", "got = connected(socket.AF_INET, ('127.0.0.2', host['tcp_2']))"),
        ("TCP to a service by IPv6", "got = connected(socket.AF_INET6, ('::1', host['tcp_6']))"),
        ("TCP to a service by a mapped address", "got = connected(socket.AF_INET6, ('::ffff:127.0.0.1', host['tcp']))"),
        ("UDP to a service on loopback", "got = connected(socket.AF_INET, ('127.0.0.1', host['udp']), socket.SOCK_DGRAM)"),
        ("an abstract Unix socket", "got = connected(socket.AF_UNIX, host['abstract'])"),
        ("a Unix socket by another path to it", "got = connected(socket.AF_UNIX, f\"/proc/{host['pid']}/root{host['socket']}\")"),
        ("a route to anywhere", "got = len(read('/proc/net/route').splitlines()) > 1"),
        ("a network card", "got = len([name for _, name in socket.if_nameindex() if name != 'lo']) > 0"),
        ("ask the kernel by netlink", "got = bool(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))"),
        ("see the machine's connections", "got = ('%04X' % host['tcp']).encode() in read('/proc/net/tcp', size=1 << 20)"),
        ("see the machine's Unix sockets", "got = host['abstract'][1:].encode() in read('/proc/net/unix', size=1 << 20)"),
    ),
    *_probes(
        "X7",
        ("raw packets of ICMP", "got = bool(socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))"),
        ("raw packets of a card", "got = bool(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))"),
        needs_root=True,
    ),
    *_probes(
        "X7",
        *(
            (f"a socket of {name}", f"got = bool(socket.socket({family}, {kind}, 0))")
            for name, family, kind in (("vsock, to the hypervisor", 40, 1), ("the kernel's cryptography", 38, 5))
            if _opens(family, kind)
        ),
    ),
]  # fmt: skip
"""The last two only where this machine has such sockets at all."""

PROGRAMS = [*READS, *CALLS, *PROCESSES, *NETWORK]


@contextmanager
def scene() -> Iterator[dict[str, Any]]:
    """A machine worth attacking: a secret, a process that knows one, services on every kind of socket."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attacked-")))
        folder.chmod(0o755)
        (folder / "secret").write_text(CANARY)
        (folder / "private").write_text(CANARY)
        (folder / "private").chmod(0o600)
        process = subprocess.Popen(
            ["sh", "-c", f"sleep 600 # {CANARY}"], env={"SECRET": CANARY}, start_new_session=True
        )
        stack.callback(process.wait)
        stack.callback(os.killpg, process.pid, signal.SIGKILL)
        host: dict[str, Any] = {
            "secret": str(folder / "secret"),
            "private": str(folder / "private"),
            "folder": str(folder),
            "folder_name": folder.name,
            "project": str(ROOT / "pyproject.toml"),
            "home": str(Path.home()),
            "nodename": os.uname().nodename,
            "socket": str(folder / "service"),
            "pid": process.pid,
            "group": process.pid,
            "abstract": f"\0sparring-{process.pid}",
            "is_outside": False,
        }
        loopback = {
            "tcp": (socket.AF_INET, "127.0.0.1"),
            "tcp_2": (socket.AF_INET, "127.0.0.2"),
            "tcp_6": (socket.AF_INET6, "::1"),
        }
        services = [(socket.AF_UNIX, host["socket"]), (socket.AF_UNIX, host["abstract"])]
        stop = threading.Event()
        stack.callback(stop.set)
        for name, (family, address) in loopback.items():
            host[name] = _serve(stack, family, (address, 0), stop)[1]
        for family, address in services:
            _serve(stack, family, address, stop)
        host["udp"] = _serve(stack, socket.AF_INET, ("127.0.0.1", 0), stop, socket.SOCK_DGRAM)[1]
        yield host


def outside(host: Mapping[str, Any], probes: Sequence[Probe]) -> dict[str, str]:
    """The positive control: the same programs as this user, with nothing around them."""
    program = inside_programs({probe.name: probe.code for probe in probes}, {**host, "is_outside": True})
    with tempfile.TemporaryDirectory() as folder, open("/dev/null", "rb") as extra:
        os.dup2(extra.fileno(), EXTRA)
        environment = {"PATH": os.environ["PATH"], "SSH_AUTH_SOCK": host["socket"], "SECRET": CANARY}
        try:
            run = subprocess.run(
                ["/usr/bin/python3", "-B", "-"],
                input=program,
                capture_output=True,
                text=True,
                timeout=120,
                cwd=folder,
                env=environment,
                pass_fds=[EXTRA],
                check=True,
                start_new_session=True,
            )
        finally:
            os.close(EXTRA)
    return outcomes(run.stdout)


def _serve(
    stack: ExitStack, family: int, address: Any, stop: threading.Event, kind: int = socket.SOCK_STREAM
) -> tuple[Any, ...]:
    """Answer every visitor with a `y`, in a thread; returns the address."""
    server = stack.enter_context(socket.socket(family, kind))
    server.bind(address)
    server.settimeout(0.2)
    if kind == socket.SOCK_STREAM:
        server.listen()

    def answer() -> None:
        while not stop.is_set():
            try:
                if kind == socket.SOCK_DGRAM:
                    _, visitor = server.recvfrom(16)
                    server.sendto(b"y", visitor)
                else:
                    with server.accept()[0] as one:
                        one.recv(1)
                        one.sendall(b"y")
            except OSError:
                continue

    thread = threading.Thread(target=answer)
    thread.start()
    stack.callback(thread.join)
    stack.callback(stop.set)
    return server.getsockname() if family != socket.AF_UNIX else (address, None)
