"""Remove resources that the sandboxes of a killed process left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sparring.sandbox.cgroups import Hierarchy, remove_abandoned
from sparring.sandbox.identity import PREFIX, is_abandoned


def remove_leftovers(hierarchies: tuple[Hierarchy, ...]) -> int:
    """Remove cgroups, folders and containers whose creator has ended. Return their number.

    Processes need no removal: they end together with the process that started them, however that process ends.
    """
    folders = [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if _is_ours(path)]
    for folder in folders:
        _remove_gvisor(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return remove_abandoned(hierarchies) + len(folders) + _remove_containers()


def _is_ours(folder: Path) -> bool:
    try:
        return is_abandoned(folder.name) and folder.lstat().st_uid == os.geteuid() and not folder.is_symlink()
    except FileNotFoundError:
        return False


def _remove_gvisor(folder: Path) -> None:
    state, program = folder / "state", shutil.which("runsc")
    if program is not None and state.is_dir():
        for id in {path.name.partition("_sandbox")[0].partition(".")[0] for path in state.iterdir()}:
            _run([program, "--root", str(state), "delete", "--force", id])


def _remove_containers() -> int:
    program = shutil.which("docker")
    if program is None:
        return 0
    listed = _run([program, "ps", "--all", "--filter", f"name=^{PREFIX}", "--format", "{{.Names}}"])
    abandoned = [name for name in listed.split() if is_abandoned(name)]
    if abandoned:
        _run([program, "rm", "--force", *abandoned])
    return len(abandoned)


def _run(command: list[str]) -> str:
    """Return the output of a command, or an empty string if it fails. The next call tries the removal again."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
