"""How the parts of a run are divided among devices, as the run starts its ranks and servers (`training.started_ranks`,
`engines.servers.processes`, `runtime.launcher`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparring.config import Config
from sparring.errors import UsageError
from sparring.planning.devices import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The parts of a run that one device holds."""

    has_run: bool = False
    """Whether the process of the run is there, with a model of its own. Without a group, its learner is there as well."""
    num_ranks: int = 0
    num_servers: int = 0

    @property
    def name(self) -> str:
        counts = ((self.num_ranks, "rank"), (self.num_servers, "server"))
        return _list_parts([*(["the run"] if self.has_run else []), *(_count(*one) for one in counts if one[0])])


RUN = Contents(has_run=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The devices of a run."""

    devices: tuple[Contents, ...] = (RUN,)
    """What devices of different kinds hold. Of each kind, it is the one that holds most."""
    num_learning: int = 1
    """The number of devices that compute gradients at the same time."""
    num_sampling: int = 1
    num_used: int = 1
    """The number of GPUs of which each has something else to do."""
    parts: str = "the run"
    """What uses these GPUs."""


def divide(config: Config, device: Device) -> Division:
    """Return how a run uses devices of this kind."""
    learner = config.learner
    is_group = learner.type == "group"
    num_running = len(learner.base_urls) if is_group else 0
    num_started = learner.num_ranks if is_group and not num_running else 0
    num_servers = config.engine.num_servers if config.starts_servers else 0
    running = [Contents(num_ranks=1)] if num_running else []
    """Ranks that are running already have devices of their own, which are not counted."""
    if not device.is_cuda:
        here = Contents(has_run=True, num_ranks=num_started, num_servers=num_servers)
        return Division(devices=(*running, here), num_learning=max(1, num_running))
    if config.run.launcher == "ray":
        return _divide_by_ray(num_started, num_servers, running, num_running)
    num_gpus, num_learners = device.num_devices, max(1, num_started)
    num_left = num_gpus - num_learners
    shares = num_left < 1
    first = Contents(
        has_run=True,
        num_ranks=math.ceil(num_started / num_gpus),
        num_servers=math.ceil(num_servers / num_gpus) if shares else 0,
    )
    servers = [] if shares or not num_servers else [Contents(num_servers=math.ceil(num_servers / num_left))]
    learners = _count(num_started, "rank") if num_started else "the run"
    return Division(
        devices=(*running, first, *servers),
        num_learning=num_running or min(num_learners, num_gpus),
        num_sampling=max(1, min(num_servers, num_gpus if shares else num_left)),
        num_used=num_learners + num_servers,
        parts=_list_parts([learners, *([_count(num_servers, "server")] if num_servers else [])]),
    )


def _divide_by_ray(num_ranks: int, num_servers: int, running: list[Contents], num_running: int) -> Division:
    """Return how a run uses the GPUs of a Ray cluster: each rank and each server has one, and the process of the run
    another one."""
    ranks = [Contents(num_ranks=1)] if num_ranks else []
    servers = [Contents(num_servers=1)] if num_servers else []
    counts = ((num_ranks, "rank"), (num_servers, "server"))
    return Division(
        devices=(*running, *ranks, RUN, *servers),
        num_learning=num_running or max(1, num_ranks),
        num_sampling=max(1, num_servers),
        num_used=1 + num_ranks + num_servers,
        parts=_list_parts(["the run", *(_count(*one) for one in counts if one[0])]),
    )


def refuse_unused(config: Config, device: Device) -> None:
    """Raise UsageError if the run does not use as many GPUs as `--gpu` names, or if Ray has too few for it."""
    used, given = divide(config, device), device.num_devices
    is_enough = given >= used.num_used or config.run.launcher != "ray"
    if is_enough and given <= used.num_used:
        return
    names = f"--gpu {device.name}:{given} names {_count(given, 'GPU')}"
    text = f"{names}, but the recipe and place use {used.num_used}: {used.parts}; "
    if used.num_used == 1:
        raise UsageError(
            f'{text}use --gpu {device.name}:1. A place file (--on) with ranks (learner.type = "group") or vLLM servers '
            '(engine.type = "vllm") uses more.'
        )
    raise UsageError(f"{text}use --gpu {device.name}:{used.num_used}.")


def _count(number: int, kind: str) -> str:
    return f"{number} {kind}" if number == 1 else f"{number} {kind}s"


def _list_parts(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
