"""Every hostile probe is contained, and every one comes through where there is no sandbox."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sparring.errors import UsageError
from sparring.sandbox import Limits, Sandbox, open_sandbox
from tests.sandbox.attacks import ATTACKS, LIMITS, come_through, succeed_outside
from tests.sandbox.probes import PROGRAMS, Probe, inside_programs, outcomes, outside, scene


@pytest.fixture(scope="module")
def host() -> Iterator[dict[str, Any]]:
    with scene() as facts:
        yield facts


def sandbox(backend: Any, limits: Limits) -> Sandbox:
    try:
        return open_sandbox(backend=backend, limits=limits)
    except UsageError as error:
        pytest.skip(f"{backend} does not work on this machine: {error}")


def test_the_table_has_no_line_twice_and_one_for_every_kind() -> None:
    names = Counter([probe.name for probe in PROGRAMS] + [attack.name for attack in ATTACKS])
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) >= 120
    ids = {line.id for line in (*PROGRAMS, *ATTACKS)}
    assert ids == {f"X{number}" for number in range(1, 17)} - {"X12"}  # which is in test_sandbox.py


def test_every_program_comes_through_outside(host: dict[str, Any]) -> None:
    probes = [probe for probe in PROGRAMS if os.geteuid() == 0 or not probe.needs_root]
    refused = {name: outcome for name, outcome in outside(host, probes).items() if outcome != "through"}
    # Kernels are built without some of their calls.
    assert {name for name, outcome in refused.items() if outcome != "absent"} == set()
    assert len(refused) < 10


@pytest.mark.parametrize("backend", ["bubblewrap", "gvisor", "docker"])
def test_no_program_comes_through(backend: str, host: dict[str, Any]) -> None:
    place = sandbox(backend, Limits(seconds=60.0, processes=64))

    async def played() -> dict[str, str]:
        async with place.session() as box:
            program = inside_programs({probe.name: probe.code for probe in PROGRAMS}, host)
            return outcomes((await box.run(["python3", "-B", "-"], stdin=program)).stdout)

    def is_contained(probe: Probe, outcome: str) -> bool:
        return outcome != "through" or backend in probe.allowed_in

    found = asyncio.run(played())
    assert set(found) == {probe.name for probe in PROGRAMS}
    assert [probe.name for probe in PROGRAMS if not is_contained(probe, found[probe.name])] == []


def test_every_attack_comes_through_outside() -> None:
    assert {attack.name for attack in ATTACKS} - set(succeed_outside(ATTACKS)) == set()


def test_no_attack_comes_through() -> None:
    assert asyncio.run(come_through(sandbox("bubblewrap", LIMITS), ATTACKS)) == []
