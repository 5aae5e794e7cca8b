"""`sparring doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from sparring.cli.command import Json, app, print_json, report_failures, say
from sparring.cli.extras import name_of, required_by_extra
from sparring.runtime.machine import count_processors, total_bytes

FEATURES = {
    "train": "trains, evaluates and serves models",
    "data": "reads parquet files",
    "datasets": "data sets of the Hugging Face hub (hf://)",
    "hub": "pushes exports to the Hugging Face hub (export --push)",
    "gymnasium": "Gymnasium environments",
    "mcp": "tools of MCP servers",
    "openenv": "OpenEnv environments",
    "sop-bench": "tasks of a SOP-Bench checkout",
    "schemas": "compares tools with production schemas (check --schemas)",
    "storage": "copies of runs on fsspec file systems (run.copy_to)",
    "s3": "copies of runs in S3 (run.copy_to)",
    "mlflow": "logs to MLflow (tracking.mlflow)",
    "tensorboard": "event files for TensorBoard (tracking.tensorboard)",
    "wandb": "logs to Weights & Biases (tracking.wandb)",
    "frames": "data frames of runs in Python",
    "prometheus": "metrics for Prometheus (tracking.prometheus_address)",
    "tinker": "trains and samples on services that speak the Tinker API (learner.type, engine.type)",
    "cluster": "starts engines, learners and workers on a Ray cluster ([launch])",
}
"""What each extra of the package is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that a feature needs, and whether it is here."""

    name: str
    state: Literal["ready", "missing"]
    purpose: str
    found: str = ""
    """The versions or the device that were found, or what is missing."""
    command: str = ""
    """The command that installs it."""


@app.command()
@report_failures
def doctor(as_json: Json = False) -> None:
    """Show what is installed, and what is missing for which feature, with the command that installs it."""
    parts = [*_extras(), _openai(), _sandbox(), _vllm(), _gpu()]
    machine = {
        "sparring": importlib.metadata.version("sparring"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": count_processors(),
        "memory_gib": _memory_gib(),
        "free_disk_gib": round(shutil.disk_usage(Path.cwd()).free / 2**30),
    }
    if as_json:
        print_json({"machine": machine, "parts": [asdict(one) for one in parts]})
        return
    processors = f"{machine['processors']} processor{'' if machine['processors'] == 1 else 's'}, "
    memory = f"{machine['memory_gib']} GiB of memory, " if machine["memory_gib"] is not None else ""
    say(
        f"sparring {machine['sparring']}, Python {machine['python']}, {machine['system']}, "
        f"{processors}{memory}{machine['free_disk_gib']} GiB free in this folder"
    )
    for one in parts:
        found = f" ({one.found})" if one.found else ""
        say(f"{one.state:8} {one.name}: {one.purpose}{found}{f'; {one.command}' if one.command else ''}")


def _extras() -> Iterator[Part]:
    """Yield the state of each extra that users may install, in the order of FEATURES."""
    required = required_by_extra()
    for name in (*(one for one in FEATURES if one in required), *(one for one in required if one not in FEATURES)):
        problems = [problem for one in required[name] if (problem := _problem_with(one)) is not None]
        yield Part(
            name=name,
            state="missing" if problems else "ready",
            purpose=FEATURES.get(name, "an extra of this package"),
            found=", ".join(problems) if problems else _versions(required[name]),
            command=f"pip install 'sparring[{name}]'" if problems else "",
        )


def _problem_with(requirement: str) -> str | None:
    """Return what is wrong with an installed package, or None if it fits the requirement."""
    name = name_of(requirement)
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is not installed"
    if importlib.util.find_spec("packaging") is None:
        return None
    from packaging.requirements import Requirement

    fits = Requirement(requirement).specifier.contains(version, prereleases=True)
    return None if fits else f"{name} {version} does not fit {requirement}"


def _versions(requirements: list[str]) -> str:
    names = [name_of(one) for one in requirements]
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names[:4])


def _openai() -> Part:
    is_here = importlib.util.find_spec("openai") is not None
    return Part(
        name="openai",
        state="ready" if is_here else "missing",
        purpose="`session.client()` in agents of your own",
        command="" if is_here else "pip install openai",
    )


def _sandbox() -> Part:
    from sparring.sandbox.backends import BACKENDS, BUBBLEWRAP

    found = [one.name for one in BACKENDS.values() if one.name != "unsafe-local" and shutil.which(one.program)]
    return Part(
        name="sandbox",
        state="ready" if found else "missing",
        purpose="runs programs that a policy writes",
        found=", ".join(found),
        command="" if found else BUBBLEWRAP.install,
    )


def _vllm() -> Part:
    from sparring.engines.servers.environment import default_folder, find_vllm
    from sparring.errors import ServiceError

    folder = default_folder()
    try:
        _, device = find_vllm(folder)
    except ServiceError:
        return Part(
            name="vllm",
            state="missing",
            purpose="samples with vLLM servers that a run starts (engine.type=vllm)",
            found=f"no environment in {folder}",
            command="sparring install vllm",
        )
    return Part(
        name="vllm",
        state="ready",
        purpose="samples with vLLM servers that a run starts",
        found=f"{device}, in {folder}",
    )


def _gpu() -> Part:
    """Return the GPUs that the NVIDIA driver lists, and whether torch can use them."""
    purpose, program = "computes on NVIDIA GPUs", shutil.which("nvidia-smi")
    if program is None:
        return Part(name="gpu", state="missing", purpose=purpose, found="no NVIDIA driver")
    try:
        listed = subprocess.run(
            [program, "--list-gpus"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return Part(name="gpu", state="missing", purpose=purpose, found="the driver does not answer (nvidia-smi)")
    names = [line.partition(" (UUID")[0] for line in listed.splitlines() if line.startswith("GPU")]
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    if not names or torch.endswith("+cpu"):
        problem = f"torch {torch} is a build for the CPU" if names else "the driver lists no GPU"
        return Part(name="gpu", state="missing", purpose=purpose, found=problem)
    return Part(name="gpu", state="ready", purpose=purpose, found=", ".join(names))


def _memory_gib() -> int | None:
    try:
        return round(total_bytes() / 2**30)
    except (OSError, ValueError):
        return None
