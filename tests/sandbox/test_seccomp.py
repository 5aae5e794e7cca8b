"""The filter of system calls: what it answers, instruction by instruction, and whether its numbers are the kernel's."""

import errno
import platform
import re
import struct
from pathlib import Path

import pytest

from sparring.sandbox.seccomp import CLONE3, NEWEST, OF_A_PROCESS, OF_ONE_OR_MANY, bpf, denied_numbers, oci_profile

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
NUMBERS = {
    "x86_64": {"read": 0, "clone": 56, "socket": 41, "ioctl": 16, "openat": 257},
    "aarch64": {"read": 63, "clone": 220, "socket": 198, "ioctl": 29, "openat": 56},
}


def refused(code: int) -> int:
    return 0x00050000 | code


def answer(architecture: str, number: int, *arguments: int, seen: int | None = None) -> int:
    """Run the program as the kernel does, on one call."""
    program = [
        struct.unpack("=HBBI", bpf(architecture)[place : place + 8]) for place in range(0, len(bpf(architecture)), 8)
    ]
    known = ARCHITECTURES[architecture] if seen is None else seen
    call = struct.pack("=IIQ6Q", number, known, 0, *(*arguments, *[0] * (6 - len(arguments))))
    place, held = 0, 0
    while True:
        code, then, otherwise, value = program[place]
        place += 1
        if code == 0x20:
            (held,) = struct.unpack_from("=I", call, value)
        elif code == 0x06:
            return value
        else:
            holds = {0x15: held == value, 0x25: held > value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            place += then if holds else otherwise


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ordinary_calls_pass_and_listed_ones_are_refused(architecture: str) -> None:
    known = NUMBERS[architecture]
    assert answer(architecture, known["read"]) == answer(architecture, known["openat"]) == ALLOW
    for name, number in denied_numbers(architecture).items():
        assert answer(architecture, number) == refused(errno.EPERM), name
    assert answer(architecture, getattr(CLONE3, architecture)) == refused(errno.ENOSYS)
    assert answer(architecture, NEWEST + 1) == refused(errno.ENOSYS)
    assert answer(architecture, known["read"], seen=0x40000003) == KILL


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_calls_are_distinguished_by_their_arguments(architecture: str) -> None:
    known = NUMBERS[architecture]
    # A thread (CLONE_VM and so on), a fork (SIGCHLD is 17), then new user and network namespaces.
    assert answer(architecture, known["clone"], 0x003D0F00) == ALLOW
    assert answer(architecture, known["clone"], 17) == ALLOW
    assert answer(architecture, known["clone"], 0x10000000 | 17) == refused(errno.EPERM)
    assert answer(architecture, known["clone"], 0x40000000) == refused(errno.EPERM)
    # AF_UNIX, AF_INET, AF_INET6; AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK.
    assert {answer(architecture, known["socket"], family) for family in (1, 2, 10)} == {ALLOW}
    assert {answer(architecture, known["socket"], family) for family in (16, 17, 38, 40)} == {refused(errno.EPERM)}
    # FIONREAD; TIOCSTI.
    assert answer(architecture, known["ioctl"], 0, 0x541B) == ALLOW
    assert answer(architecture, known["ioctl"], 0, 0x5412) == refused(errno.EPERM)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_program_changes_limits_and_priorities_of_no_process_but_its_own(architecture: str) -> None:
    for both in OF_A_PROCESS.values():
        number = getattr(both, architecture)
        assert answer(architecture, number, 0, 7) == ALLOW
        assert answer(architecture, number, 1, 7) == refused(errno.EPERM)
    # PRIO_PROCESS, PRIO_PGRP and PRIO_USER are 0, 1 and 2; IOPRIO_WHO_PROCESS, _PGRP and _USER are 1, 2 and 3.
    for name, first in (("setpriority", 0), ("ioprio_set", 1)):
        number = getattr(OF_ONE_OR_MANY[name][0], architecture)
        assert answer(architecture, number, first, 0) == ALLOW
        assert answer(architecture, number, first, 1) == refused(errno.EPERM)
        assert answer(architecture, number, first + 1, 0) == refused(errno.EPERM)
        assert answer(architecture, number, first + 2, 0) == refused(errno.EPERM)


def test_another_calling_convention_is_refused() -> None:
    assert answer("x86_64", 0x40000000 | 39) == refused(errno.ENOSYS)


@pytest.mark.parametrize(
    ("architecture", "header"),
    [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")],
)
def test_numbers_are_those_of_the_kernels_headers(architecture: str, header: str) -> None:
    file = Path("/usr/include") / header
    if not file.exists() or (architecture == "x86_64" and platform.machine() != "x86_64"):
        pytest.skip(f"{file} is not on this machine")
    defined = {
        name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", file.read_text())
    }
    ours = denied_numbers(architecture)
    ours |= {name: getattr(both, architecture) for name, both in OF_A_PROCESS.items()}
    ours |= {name: getattr(both, architecture) for name, (both, _) in OF_ONE_OR_MANY.items()}
    known = {name: number for name, number in ours.items() if name in defined}
    assert len(known) > 50
    assert known == {name: defined[name] for name in known}


def test_the_profile_of_oci_runtimes_refuses_the_same_names() -> None:
    profile = oci_profile()
    (names,) = [rule["names"] for rule in profile["syscalls"] if len(rule["names"]) > 1 and "args" not in rule]
    assert set(names) >= set(denied_numbers("x86_64"))
    conditions = {
        (name, rule["args"][0]["index"]) for rule in profile["syscalls"] if "args" in rule for name in rule["names"]
    }
    assert conditions >= {(name, 0) for name in (*OF_A_PROCESS, *OF_ONE_OR_MANY)} | {
        (name, 1) for name in OF_ONE_OR_MANY
    }
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert {rule["names"][0] for rule in profile["syscalls"]} >= {"clone3", "clone", "socket", "ioctl"}
