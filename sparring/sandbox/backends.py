"""The back ends, which start sandboxes with isolated programs. Each back end is a program on the host with its
arguments.

Bubblewrap: bwrap(1). gVisor: the OCI runtime specification (config.md, config-linux.md) and `runsc flags`. Docker:
docker run, docs.docker.com/reference/cli/docker/container/run.
"""

from __future__ import annotations

import functools
import json
import marshal
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

from sparring.errors import UsageError
from sparring.sandbox.limits import Limits
from sparring.sandbox.seccomp import bpf, oci_profile
from sparring.types import Json

BackendName: TypeAlias = Literal["bubblewrap", "gvisor", "docker", "unsafe-local"]

SCRATCH = "/work"
INSIDE_USER = 1000
"""The user id of programs inside a sandbox."""
FIRST_USER = 0
"""The user id of the first process in a sandbox with two users, so that programs cannot signal it."""
CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP")
"""The capabilities that the first process of such a sandbox needs to start, stop and read what belongs to the other
user. They apply only inside the sandbox."""
USER_IDS = (60578, 61183)
"""The first and last host user id for sandboxes that root starts, two ids per sandbox. systemd leaves this range
unassigned (systemd.io/UIDS-GIDS)."""
DOCKER_USER = USER_IDS[0]
"""The user id of programs in Docker, which usually has no user namespace. It is therefore a user id of the machine, one
that no user has."""
DOCKER_IMAGE = "python:3.11-slim"
MIB = 2**20

AGENT = Path(__file__).parent / "agent.py"
_LOADER = "import marshal, sys; exec(marshal.loads(bytes.fromhex(sys.argv[1])))"

PASSWD = f"sandbox:x:{INSIDE_USER}:{INSIDE_USER}::{SCRATCH}:/bin/sh\n".encode()
GROUP = f"sandbox:x:{INSIDE_USER}:\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """The interpreter that runs inside, and the host folders that it needs."""

    path: str
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings that all sessions of a `Sandbox` share."""

    limits: Limits
    python: Python
    read_only: tuple[str, ...] = ()
    """Other host folders that are visible inside, at the same paths."""
    docker_image: str = DOCKER_IMAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command and settings that start one sandbox."""

    argv: Sequence[str]
    inherited: Sequence[bytes] = ()
    """Contents that the program receives as open descriptors 3, 4, ..."""
    environment: Mapping[str, str] = field(default_factory=dict)
    users: tuple[int, ...] = ()
    """The users inside. The spawner reserves host users for the sandbox, creates a user namespace that maps the users
    to them, and starts the program as the first of the users. If empty, the back end chooses the user and the
    namespace."""
    cleanup: Sequence[Sequence[str]] = ()
    """Commands that remove leaked resources after the program is dead."""
    folder: Path | None = None
    """A folder to remove afterwards."""
    extra_processes: int = 2
    """The number of processes that the back end itself adds to the group."""
    extra_memory_mib: int = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One way to isolate programs. `program` must be installed on the host. `launch` returns how to start a sandbox
    named `id`."""

    name: BackendName
    program: str
    install: str
    launch: Callable[[str, Setup], Launch]
    counts_processes: bool = False
    """True if the first process must count the others, because no kernel limit does."""
    has_own_limits: bool = False
    """True if the back end limits memory and processes, instead of a control group of Sparring."""


def find_python(wanted: str | None) -> Python:
    """Return the interpreter to use inside: the system's interpreter, otherwise the current one if a user of the
    sandbox may read it.

    Raises UsageError, which lists the candidates, if there is none.
    """
    if wanted is not None:
        found = _python_at(Path(wanted))
        if found is None:
            raise UsageError(
                f"python={wanted!r} is not an interpreter that every user of this machine may read and execute, so it "
                f"cannot run inside the sandbox; give one under /usr or /opt, or make its folder readable for all "
                "users."
            )
        return found
    candidates = [Path("/usr/bin/python3"), Path(sys.executable)]
    for candidate in candidates:
        found = _python_at(candidate)
        if found is not None:
            return found
    raise UsageError(
        f"No interpreter can run inside the sandbox: {', '.join(map(str, candidates))} are missing, or in a folder "
        f"that other users may not read. Install the system's Python (apt-get install python3), or set `python` to "
        "another one."
    )


def _agent_command(
    backend: Backend, limits: Limits, python: str, scratch: str = SCRATCH, *, user: int | None = None
) -> list[str]:
    """Return the command that starts a sandbox's first process, with its program and settings as arguments.

    `user` is the user id of programs, or None if programs run as the user of the first process.
    """
    settings = {
        "scratch": scratch,
        "user": user,
        "files": limits.files if backend.name != "unsafe-local" else None,
        "processes": limits.processes if backend.counts_processes else None,
        "environment": {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": scratch,
            "TMPDIR": f"{scratch}/.tmp",
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    }
    # Version 2 of the format is read by every Python 3.
    known = marshal.dumps(settings, 2).hex()
    if backend.name == "docker":
        return [python, "-I", "-S", "-c", AGENT.read_text("utf-8"), known]
    return [python, "-I", "-S", "-c", _LOADER, _compiled_agent(python), known]


def _bubblewrap(id: str, setup: Setup) -> Launch:
    program, limits = _program("bwrap"), setup.limits
    binds: list[str] = []
    for folder in _system_folders(setup):
        # Bubblewrap would create the parent folders for their owner only.
        binds += [
            part for above in reversed(Path(folder).parents[:-1]) for part in ("--perms", "0755", "--dir", str(above))
        ]
        binds += ["--ro-bind", folder, folder]
    for name, target in _links().items():
        binds += ["--symlink", target, f"/{name}"]
    if os.geteuid() == 0 and owns_user_ids(Path("/proc/self/uid_map").read_text("utf-8")):
        users = (FIRST_USER, INSIDE_USER)
        own = [
            "--unshare-ipc",
            "--unshare-pid",
            "--unshare-net",
            "--unshare-uts",
            "--unshare-cgroup-try",
            "--cap-drop",
            "ALL",
        ]
        own += [part for name in CAPABILITIES for part in ("--cap-add", name)]
    else:
        # Only root may put two users into a user namespace, and not the root of a container with few user ids. Here
        # programs run as the user of the first process. The system call filter and the kernel's protection of first
        # processes protect that process from them.
        users = ()
        own = [
            "--unshare-all",
            "--unshare-user",
            "--uid",
            str(INSIDE_USER),
            "--gid",
            str(INSIDE_USER),
            "--cap-drop",
            "ALL",
        ]
        own += ["--disable-userns"] if _knows_disable_userns(program) else []
    argv = [
        program, *own, "--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv",
        "--seccomp", "3", *binds, "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev",
        "--perms", "1777", "--size", str(limits.shared_memory_mib * MIB), "--tmpfs", "/dev/shm",
        "--perms", "0700", "--size", str(limits.disk_mib * MIB), "--tmpfs", SCRATCH, "--symlink", f"{SCRATCH}/.tmp", "/tmp",
        "--perms", "0644", "--ro-bind-data", "4", "/etc/passwd", "--perms", "0644", "--ro-bind-data", "5", "/etc/group",
        "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives",
        # Bubblewrap's own mount is a memory file system without a size limit, so it must be read-only.
        "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", SCRATCH,
        "--", *_agent_command(BUBBLEWRAP, limits, setup.python.path, user=INSIDE_USER if users else None),
    ]  # fmt: skip
    return Launch(argv=argv, inherited=(_filter(), PASSWD, GROUP), users=users)


def _gvisor(id: str, setup: Setup) -> Launch:
    program, limits = _program("runsc"), setup.limits
    folder = Path(tempfile.mkdtemp(prefix=f"{id}-"))
    root = folder / "root"
    for name in ("proc", "dev", "etc", SCRATCH[1:], *(f[1:] for f in _system_folders(setup))):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, target in _links().items():
        (root / name).symlink_to(target)
    (root / "tmp").symlink_to(f"{SCRATCH}/.tmp")
    (root / "etc/passwd").write_bytes(PASSWD)
    (root / "etc/group").write_bytes(GROUP)
    for path in (folder, root):
        path.chmod(0o755)
    memory = ["nosuid", "nodev"]
    mounts: list[Json] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {
            "destination": "/dev/shm",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": [*memory, "mode=1777", f"size={limits.shared_memory_mib}m"],
        },
        {
            "destination": SCRATCH,
            "type": "tmpfs",
            "source": "tmpfs",
            "options": [*memory, "mode=0700", f"uid={INSIDE_USER}", f"gid={INSIDE_USER}", f"size={limits.disk_mib}m"],
        },
        *(
            {"destination": path, "type": "bind", "source": path, "options": ["ro", "rbind"]}
            for path in _system_folders(setup)
        ),
    ]
    spaces = ("pid", "network", "ipc", "uts", "mount")
    config: dict[str, Json] = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": FIRST_USER, "gid": FIRST_USER, "additionalGids": []},
            "args": _agent_command(GVISOR, limits, setup.python.path, user=INSIDE_USER),
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": SCRATCH,
            "noNewPrivileges": True,
            "capabilities": {
                name: list(CAPABILITIES) if name in ("bounding", "effective", "permitted") else []
                for name in ("bounding", "effective", "inheritable", "permitted", "ambient")
            },
        },
        "root": {"path": str(root), "readonly": True},
        "hostname": "sandbox",
        "mounts": mounts,
        "linux": {"namespaces": [{"type": space} for space in spaces], "seccomp": oci_profile()},
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    state = ["--root", str(folder / "state")]
    # As root, gVisor itself drops its privileges: it moves its kernel into namespaces of an unprivileged user.
    flags = ["--network=none", "--ignore-cgroups", "--oci-seccomp", *([] if os.geteuid() == 0 else ["--rootless"])]
    return Launch(
        argv=[program, *state, *flags, "run", "--bundle", str(folder), id],
        cleanup=[[program, *state, *flags, "delete", "--force", id]],
        folder=folder,
        extra_processes=1024,
        extra_memory_mib=256,
    )


def _docker(id: str, setup: Setup) -> Launch:
    program, limits = _program("docker"), setup.limits
    folder = Path(tempfile.mkdtemp(prefix=f"{id}-"))
    (folder / "seccomp.json").write_text(json.dumps(oci_profile()), "utf-8")
    memory = limits.memory_mib + limits.disk_mib + limits.shared_memory_mib + 24
    argv = [
        program, "run", "--rm", "--interactive", "--pull", "never", "--name", id, "--network", "none", "--read-only",
        "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
        "--security-opt", f"seccomp={folder / 'seccomp.json'}", "--user", f"{DOCKER_USER}:{DOCKER_USER}",
        "--ipc", "private", "--hostname", "sandbox", "--log-driver", "none", "--pids-limit", str(limits.processes + 1),
        "--memory", f"{memory}m", "--memory-swap", f"{memory}m", "--shm-size", f"{limits.shared_memory_mib}m",
        "--tmpfs", f"{SCRATCH}:rw,nosuid,nodev,exec,mode=0700,uid={DOCKER_USER},gid={DOCKER_USER},size={limits.disk_mib}m",
        "--workdir", SCRATCH, *(part for path in setup.read_only for part in ("--volume", f"{path}:{path}:ro")),
        setup.docker_image, *_agent_command(DOCKER, limits, "python3"),
    ]  # fmt: skip
    reach = {name: os.environ[name] for name in ("HOME", "PATH", "DOCKER_HOST", "DOCKER_CONFIG") if name in os.environ}
    return Launch(argv=argv, environment=reach, cleanup=[[program, "rm", "--force", id]], folder=folder)


def _unsafe_local(id: str, setup: Setup) -> Launch:
    folder = Path(tempfile.mkdtemp(prefix=f"{id}-"))
    scratch = folder / "work"
    scratch.mkdir()
    return Launch(argv=_agent_command(UNSAFE_LOCAL, setup.limits, sys.executable, str(scratch)), folder=folder)


BUBBLEWRAP = Backend(
    name="bubblewrap",
    program="bwrap",
    launch=_bubblewrap,
    install="apt-get install bubblewrap (dnf, pacman and apk have it under the same name). If it is installed and "
    "fails, let users create user namespaces: sysctl user.max_user_namespaces=15000, "
    "kernel.unprivileged_userns_clone=1 (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); "
    "in a container, also a seccomp profile that allows unshare and mount, and an unmasked /proc (docker run --security-opt "
    "seccomp=unconfined --security-opt systempaths=unconfined).",
)
GVISOR = Backend(
    name="gvisor",
    program="runsc",
    launch=_gvisor,
    counts_processes=True,
    install="apt-get install runsc, or the release at https://gvisor.dev/docs/user_guide/install.",
)
DOCKER = Backend(
    name="docker",
    program="docker",
    launch=_docker,
    has_own_limits=True,
    install=f"start the daemon and pull an image with Python (docker pull {DOCKER_IMAGE}, or name "
    "another image with `docker_image`).",
)
UNSAFE_LOCAL = Backend(name="unsafe-local", program=sys.executable, launch=_unsafe_local, install="")
BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {backend.name: backend for backend in (BUBBLEWRAP, GVISOR, DOCKER, UNSAFE_LOCAL)}
)
"""The back ends in the order in which `auto` tries them. `auto` never selects the last one."""


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


def _system_folders(setup: Setup) -> list[str]:
    """Return the host folders that are visible inside, read-only: the system's programs and libraries, and the
    configured folders."""
    own = [f"/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64") if _is_plain_folder(Path(f"/{name}"))]
    return list(dict.fromkeys(["/usr", *own, *setup.python.folders, *setup.read_only]))


def _links() -> dict[str, str]:
    """Return the links among /bin, /lib and similar folders, with their targets."""
    names = ("bin", "sbin", "lib", "lib32", "lib64")
    return {name: os.readlink(f"/{name}") for name in names if os.path.islink(f"/{name}")}


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _python_at(path: Path) -> Python | None:
    """Return the interpreter at a path, with the folders that it needs, if every user may read them."""
    if not path.exists():
        return None
    real = path.resolve()
    if not _is_open_to_all(real):
        return None
    if real.is_relative_to("/usr"):
        return Python(path=str(path))
    prefix = subprocess.run(
        [str(path), "-I", "-S", "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, timeout=30
    ).stdout.strip()
    if not prefix or not _is_open_to_all(Path(prefix)):
        return None
    return Python(path=str(real), folders=() if Path(prefix).is_relative_to("/usr") else (prefix,))


def _is_open_to_all(path: Path) -> bool:
    """Return whether every user may reach and read a path."""
    if not path.stat().st_mode & 0o004:
        return False
    return all(folder.stat().st_mode & 0o001 for folder in path.parents)


def owns_user_ids(uid_map: str) -> bool:
    """Return whether the user namespace with this map (proc(5), uid_map) has all of USER_IDS."""
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, uid_map.splitlines())]
    return any(first <= USER_IDS[0] and USER_IDS[1] < first + count for first, count in ranges)


@functools.cache
def _knows_disable_userns(program: str) -> bool:
    """Return whether bubblewrap has --disable-userns (0.8 or newer). Without it, the system call filter denies user
    namespaces."""
    return "--disable-userns" in subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30).stdout


@functools.cache
def _filter() -> bytes:
    try:
        return bpf(platform.machine())
    except KeyError as error:
        raise OSError(f"its system call filter has no numbers for {error}") from error


@functools.cache
def _compiled_agent(python: str) -> str:
    """Return the first process's program, compiled by this interpreter so that it is not compiled at every start."""
    command = "import marshal, sys; print(marshal.dumps(compile(sys.stdin.read(), 'agent', 'exec', optimize=2)).hex())"
    return subprocess.run(
        [python, "-I", "-S", "-c", command],
        input=AGENT.read_text("utf-8"),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout.strip()
