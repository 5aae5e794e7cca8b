"""The system calls that a sandbox denies: one list, as a classic BPF program and as the profile of an OCI runtime.

BPF: See Documentation/userspace-api/seccomp_filter.rst in Linux. `struct sock_filter` and `struct seccomp_data` are
from linux/filter.h and linux/seccomp.h. Numbers are those of asm/unistd_64.h (x86_64) and asm-generic/unistd.h
(aarch64).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from sparring.types import Json

Architecture: TypeAlias = Literal["x86_64", "aarch64"]


class Numbers(NamedTuple):
    """The number of a system call for each architecture, or None if the call does not exist there."""

    x86_64: int | None
    aarch64: int | None


def _everywhere(number: int) -> Numbers:
    """Return one number for all architectures, because system calls from 424 on have the same number everywhere."""
    return Numbers(number, number)


DENIED: Mapping[str, Numbers] = MappingProxyType(
    {
        # Namespaces, mounts and roots.
        "unshare": Numbers(272, 97), "setns": Numbers(308, 268), "mount": Numbers(165, 40), "umount2": Numbers(166, 39),
        "pivot_root": Numbers(155, 41), "chroot": Numbers(161, 51), "open_tree": _everywhere(428),
        "move_mount": _everywhere(429), "fsopen": _everywhere(430), "fsconfig": _everywhere(431),
        "fsmount": _everywhere(432), "fspick": _everywhere(433), "mount_setattr": _everywhere(442),
        "statmount": _everywhere(457), "listmount": _everywhere(458), "open_tree_attr": _everywhere(467),
        # Other processes' memory and files.
        "ptrace": Numbers(101, 117), "process_vm_readv": Numbers(310, 270), "process_vm_writev": Numbers(311, 271),
        "kcmp": Numbers(312, 272), "pidfd_getfd": _everywhere(438), "process_madvise": _everywhere(440),
        "process_mrelease": _everywhere(448),
        "move_pages": Numbers(279, 239), "migrate_pages": Numbers(256, 238),
        "name_to_handle_at": Numbers(303, 264), "open_by_handle_at": Numbers(304, 265),
        "fanotify_init": Numbers(300, 262), "fanotify_mark": Numbers(301, 263),
        # Large parts of the kernel that often have security bugs, and that programs in a sandbox do not need.
        "add_key": Numbers(248, 217), "request_key": Numbers(249, 218), "keyctl": Numbers(250, 219),
        "bpf": Numbers(321, 280), "io_uring_setup": _everywhere(425), "io_uring_enter": _everywhere(426),
        "io_uring_register": _everywhere(427), "userfaultfd": Numbers(323, 282), "perf_event_open": Numbers(298, 241),
        "personality": Numbers(135, 92), "uselib": Numbers(134, None), "modify_ldt": Numbers(154, None),
        "iopl": Numbers(172, None), "ioperm": Numbers(173, None), "vhangup": Numbers(153, 58),
        "lookup_dcookie": Numbers(212, 18), "nfsservctl": Numbers(180, 42),
        # Memory that does not count toward the limits of one process.
        "memfd_create": Numbers(319, 279), "memfd_secret": _everywhere(447), "shmget": Numbers(29, 194),
        "shmat": Numbers(30, 196), "msgget": Numbers(68, 186), "semget": Numbers(64, 190), "mq_open": Numbers(240, 180),
        "set_mempolicy": Numbers(238, 237), "mbind": Numbers(237, 235),
        # The machine as a whole.
        "reboot": Numbers(169, 142), "kexec_load": Numbers(246, 104), "kexec_file_load": Numbers(320, 294),
        "init_module": Numbers(175, 105), "finit_module": Numbers(313, 273), "delete_module": Numbers(176, 106),
        "swapon": Numbers(167, 224), "swapoff": Numbers(168, 225), "settimeofday": Numbers(164, 170),
        "clock_settime": Numbers(227, 112), "clock_adjtime": Numbers(305, 266), "adjtimex": Numbers(159, 171),
        "sethostname": Numbers(170, 161), "setdomainname": Numbers(171, 162), "acct": Numbers(163, 89),
        "quotactl": Numbers(179, 60), "quotactl_fd": _everywhere(443), "syslog": Numbers(103, 116),
    }
)  # fmt: skip
"""Calls that are refused with EPERM."""

CLONE3 = _everywhere(435)
"""This call is refused with ENOSYS: a filter cannot read its flags, which are in memory, and libc falls back to
clone."""
NEWEST = 469
"""Calls above this one are newer than the list. They are refused with ENOSYS, as a kernel without them would do."""

OF_A_PROCESS: Mapping[str, Numbers] = MappingProxyType(
    {
        "prlimit64": Numbers(302, 261),
        "sched_setparam": Numbers(142, 118),
        "sched_setscheduler": Numbers(144, 119),
        "sched_setaffinity": Numbers(203, 122),
        "sched_setattr": Numbers(314, 274),
    }
)
"""Calls whose first argument is a process. Only 0, the caller itself, is allowed."""
OF_ONE_OR_MANY: Mapping[str, tuple[Numbers, int]] = MappingProxyType(
    {"setpriority": (Numbers(141, 140), 0), "ioprio_set": (Numbers(251, 30), 1)}
)
"""Calls whose first argument states what the second one identifies: a process, a group of processes or a user. Only a
process (PRIO_PROCESS, IOPRIO_WHO_PROCESS) is allowed, and only 0, the caller itself."""
NAMESPACE_FLAGS = MappingProxyType(
    {
        "CLONE_NEWTIME": 0x00000080,
        "CLONE_NEWNS": 0x00020000,
        "CLONE_NEWCGROUP": 0x02000000,
        "CLONE_NEWUTS": 0x04000000,
        "CLONE_NEWIPC": 0x08000000,
        "CLONE_NEWUSER": 0x10000000,
        "CLONE_NEWPID": 0x20000000,
        "CLONE_NEWNET": 0x40000000,
    }
)
"""`clone` with any of these is refused. CLONE_NEWTIME shares its bit with the exit signal of clone, which is below 128."""
SOCKET_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET and AF_INET6, which a network namespace confines. Others are not confined: vsock reaches the
hypervisor."""
TERMINAL_REQUESTS = (0x5412, 0x541C)
"""ioctl TIOCSTI and TIOCLINUX, which type into a terminal."""

_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SYSCALL = {"x86_64": {"clone": 56, "socket": 41, "ioctl": 16}, "aarch64": {"clone": 220, "socket": 198, "ioctl": 29}}
_X32_BIT = 0x40000000
_EPERM, _ENOSYS = 1, 38

# Instructions: BPF_LD|W|ABS, BPF_JMP|{JEQ,JGT,JGE,JSET}|K, BPF_RET|K.
_LOAD, _EQUAL, _GREATER, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
# Offsets into struct seccomp_data: the number, the architecture, and the low words of the arguments.
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24


class _Step(NamedTuple):
    """One instruction. `then` and `otherwise` are labels to jump to. None means to continue with the next
    instruction."""

    code: int
    value: int
    then: str | None = None
    otherwise: str | None = None
    label: str | None = None


def bpf(architecture: str) -> bytes:
    """Return the filter as an array of `struct sock_filter`. Raises KeyError for an architecture whose numbers are
    unknown."""
    number = _SYSCALL[architecture]
    steps = [
        _Step(_LOAD, _ARCHITECTURE),
        _Step(_EQUAL, _AUDIT_ARCHITECTURE[architecture], otherwise="kill"),
        _Step(_LOAD, _NUMBER),
    ]
    if architecture == "x86_64":
        steps.append(_Step(_AT_LEAST, _X32_BIT, then="unknown"))
    steps.append(_Step(_GREATER, NEWEST, then="unknown"))
    steps.append(_Step(_EQUAL, getattr(CLONE3, architecture), then="unknown"))
    steps += [_Step(_EQUAL, denied, then="denied") for denied in denied_numbers(architecture).values()]
    steps += [_Step(_EQUAL, number[name], then=name) for name in ("clone", "socket", "ioctl")]
    steps += [_Step(_EQUAL, getattr(both, architecture), then="process") for both in OF_A_PROCESS.values()]
    steps += [_Step(_EQUAL, getattr(both, architecture), then=name) for name, (both, _) in OF_ONE_OR_MANY.items()]
    steps.append(_Step(_RETURN, _ALLOW))
    # The exit signal is in the low byte of clone's flags, so the bit of CLONE_NEWTIME means nothing there.
    flags = sum(NAMESPACE_FLAGS.values()) & ~NAMESPACE_FLAGS["CLONE_NEWTIME"]
    steps += [_Step(_LOAD, _ARGUMENT_0, label="clone"), _Step(_ANY_BIT, flags, then="denied", otherwise="allowed")]
    steps.append(_Step(_LOAD, _ARGUMENT_1, label="ioctl"))
    steps += [_Step(_EQUAL, request, then="denied") for request in TERMINAL_REQUESTS]
    steps.append(_Step(_RETURN, _ALLOW))
    for name, (_, one) in OF_ONE_OR_MANY.items():
        steps += [_Step(_LOAD, _ARGUMENT_0, label=name), _Step(_EQUAL, one, otherwise="denied")]
        steps += [_Step(_LOAD, _ARGUMENT_1), _Step(_EQUAL, 0, then="allowed", otherwise="denied")]
    steps += [_Step(_LOAD, _ARGUMENT_0, label="process"), _Step(_EQUAL, 0, then="allowed", otherwise="denied")]
    steps.append(_Step(_LOAD, _ARGUMENT_0, label="socket"))
    steps += [_Step(_EQUAL, family, then="allowed") for family in SOCKET_FAMILIES]
    steps.append(_Step(_RETURN, _ERRNO | _EPERM, label="denied"))
    steps.append(_Step(_RETURN, _ERRNO | _ENOSYS, label="unknown"))
    steps.append(_Step(_RETURN, _ALLOW, label="allowed"))
    steps.append(_Step(_RETURN, _KILL, label="kill"))
    return _assembled(steps)


def denied_numbers(architecture: str) -> dict[str, int]:
    """Return the numbers of the denied system calls that exist on this architecture."""
    numbers = {name: getattr(both, architecture) for name, both in DENIED.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def oci_profile() -> dict[str, Json]:
    """Return the same list of system calls in the format of the OCI runtime specification (config-linux.md,
    Seccomp)."""
    unwanted = [family for family in range(64) if family not in SOCKET_FAMILIES]
    flags = [flag for name, flag in NAMESPACE_FLAGS.items() if name != "CLONE_NEWTIME"]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            _denied(sorted(DENIED)),
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
            *(_denied(["clone"], 0, "SCMP_CMP_MASKED_EQ", flag, flag) for flag in flags),
            *(_denied(["socket"], 0, "SCMP_CMP_EQ", family) for family in unwanted),
            *(_denied(["ioctl"], 1, "SCMP_CMP_EQ", request) for request in TERMINAL_REQUESTS),
            _denied(sorted(OF_A_PROCESS), 0, "SCMP_CMP_NE", 0),
            *(_denied([name], 0, "SCMP_CMP_NE", one) for name, (_, one) in OF_ONE_OR_MANY.items()),
            *(_denied([name], 1, "SCMP_CMP_NE", 0) for name in OF_ONE_OR_MANY),
        ],
    }


def _denied(names: list[str], index: int = 0, operator: str = "", value: int = 0, other: int = 0) -> dict[str, Json]:
    rule: dict[str, Json] = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM}
    if operator:
        rule["args"] = [{"index": index, "value": value, "valueTwo": other, "op": operator}]
    return rule


def _assembled(steps: list[_Step]) -> bytes:
    """Replace labels with distances. A jump reaches at most 255 instructions forward."""
    places = {step.label: place for place, step in enumerate(steps) if step.label is not None}
    program = bytearray()
    for place, step in enumerate(steps):
        distances = [0 if label is None else places[label] - place - 1 for label in (step.then, step.otherwise)]
        assert all(0 <= distance <= 255 for distance in distances), "a jump of the filter is too far"
        program += struct.pack("=HBBI", step.code, *distances, step.value)
    return bytes(program)
