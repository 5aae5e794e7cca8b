"""Copy a run to a store while it trains, from a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sparring.copies.manifest import (
    BLOCK_BYTES,
    CopyManifest,
    FileEntry,
    find_generation,
    hash_block,
    is_part_of_owner,
    list_manifests,
    name_block,
    name_manifest,
    parse_name,
    read_newest,
)
from sparring.copies.ownership import LEASE_SECONDS, Ownership, TakenOver, claim
from sparring.copies.snapshot import Staged, take_snapshot
from sparring.copies.store import Store, StoreError
from sparring.findings import Finding, Severity
from sparring.run_folders import RunFolder
from sparring.runtime.faults import fault_point
from sparring.runtime.logs import get_logger

logger = get_logger(__name__)

PAUSE_SECONDS = 10.0
"""The shortest time between two copies, unless there is a new checkpoint."""
POLL_SECONDS = 1.0
"""The time between two looks for a new checkpoint."""
LOAD = 0.1
"""The largest share of the time that reading and hashing the run's files may take."""
RENEW_SECONDS = LEASE_SECONDS / 4
LONGEST_WAIT_SECONDS = 60.0
"""The longest wait before a store that failed is tried again. The wait doubles after each failure."""
IDLE_SECONDS = 60.0
"""At the end of a run, the last copy may take as long as blocks arrive, with at most this time between two blocks."""
BEHIND_SECONDS = 300.0
"""A copy that is older than this causes a finding."""
NUM_KEPT = 2
"""The number of lists of files that are kept: the newest, and one for a process that is reading the copy."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of a copier, in seconds."""

    pause: float = PAUSE_SECONDS
    poll: float = POLL_SECONDS
    idle: float = IDLE_SECONDS
    behind: float = BEHIND_SECONDS


PACE = Pace()


def open_copier(
    folder: RunFolder,
    url: str,
    *,
    is_resumed: bool,
    say: Callable[[str], object],
    pace: Pace = PACE,
) -> Copier:
    """Start to copy a run to `<url>/<name of the run>`. Raises the errors of `Store` and `claim`."""
    store = Store(f"{url.rstrip('/')}/{folder.path.name}")
    return Copier(folder, store, claim(store, folder, is_resumed=is_resumed, say=say), pace=pace)


@final
class Copier:
    """Copies what has changed in a run folder, again and again. A store that fails or is slow never ends the run.

    The blocks of all changed files are written first and then the list of files, so that a copy is either complete or
    not visible. Blocks that no list contains any more are deleted after that.
    """

    def __init__(self, folder: RunFolder, store: Store, ownership: Ownership, *, pace: Pace = PACE) -> None:
        self._folder, self._store, self._ownership, self._pace = folder, store, ownership, pace
        self._newest: CopyManifest | None = None
        self._number = 0
        self._written: set[str] = set()
        """The blocks that are in the store."""
        self._kept: dict[str, frozenset[str]] = {}
        """The blocks of each list of files in the store, by its name; oldest first."""
        self._is_open, self._has_leftovers = False, True
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._copied_at = self._active_at = self._renewed_at = time.monotonic()
        self._num_bytes = 0
        self._problem: str | None = None
        self._taken: str | None = None
        self._reported: str | None = None
        self._links: set[str] = set()
        self.is_complete = False
        """Whether the last copy contains the end of the run."""
        threading.Thread(target=self._run, name="sparring-copier", daemon=True).start()

    def metrics(self) -> dict[str, float]:
        """Return the age of the newest complete copy, and the bytes that were sent since the last call."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        return {
            "copy/age_seconds": time.monotonic() - self._copied_at,
            "copy/sent_bytes": float(num_bytes),
        }

    def finding(self, step: int) -> Finding | None:
        """Return a finding if the copy is out of date, once until it is up to date again."""
        age = time.monotonic() - self._copied_at
        kind = "copy.taken" if self._taken else "copy.behind" if age > self._pace.behind else None
        is_new, self._reported = kind != self._reported, kind
        if kind is None or not is_new:
            return None
        if self._taken:
            return Finding(
                rule=kind,
                severity=Severity.ERROR,
                symptom=f"{self._store.url}: {self._taken}, so this run is no longer copied.",
                evidence={"url": self._store.url},
                change=f"Stop one of the two runs. This one is in {self._folder.path}.",
                confirm="Only one process trains the run.",
                step=step,
            )
        return Finding(
            rule=kind,
            severity=Severity.WARNING,
            symptom=f"The newest complete copy in {self._store.url} is {age:.0f} s old: {self._problem or 'it is slow'}",
            evidence={"url": self._store.url, "age_seconds": age, "problem": self._problem},
            change="Repair the store or the connection to it. Until then, a lost disk loses everything since that copy.",
            confirm="copy/age_seconds falls below a minute.",
            step=step,
        )

    def close(self) -> bool:
        """Copy the end of the run, and return whether the copy is complete. Wait as long as blocks arrive."""
        self._active_at = time.monotonic()
        self._closing.set()
        while not self._ended.wait(0.2):
            if time.monotonic() - self._active_at > self._pace.idle:
                break
        if not self.is_complete and self._taken is None:
            logger.warning(
                "copy: %s does not contain the end of the run (%s). Run `sparring runs copy %s` to send the rest.",
                self._store.url,
                self._problem or "it is too slow",
                self._folder.path,
            )
        return self.is_complete

    def _run(self) -> None:
        wait, num_failures = 0.0, 0
        while True:
            is_last = self._wait(wait)
            try:
                busy = self._copy()
                if is_last:
                    self._ownership.renew(is_released=True)
                    self.is_complete = True
            except TakenOver as taken:
                self._taken = str(taken)
                logger.warning("copy: %s: %s; this run goes on without a copy.", self._store.url, taken)
                break
            except Exception as error:  # noqa: BLE001 - a copy that fails must not end the run
                num_failures += 1
                wait = min(2.0 ** (num_failures - 1), LONGEST_WAIT_SECONDS)
                self._note(error)
                if is_last and num_failures >= 3:
                    break
                if is_last:
                    time.sleep(wait)
            else:
                if self._problem is not None:
                    logger.warning("copy: %s is up to date again.", self._store.url)
                self._problem, num_failures, wait = None, 0, max(self._pace.pause, busy / LOAD)
                if is_last:
                    break
        self._ended.set()

    def _wait(self, seconds: float) -> bool:
        """Wait until the time is over, the run has a new checkpoint, or it ends. Return whether it ends."""
        deadline = time.monotonic() + seconds
        while (rest := deadline - time.monotonic()) > 0:
            if self._closing.wait(min(self._pace.poll, rest)):
                return True
            if self._problem is None and self._has_new_checkpoint():
                break
        return self._closing.is_set()

    def _has_new_checkpoint(self) -> bool:
        known = self._newest.files if self._newest is not None else {}
        names = [path.parent.name for path in self._folder.checkpoints.glob("[!.]*/manifest.json")]
        return any(f"checkpoints/{name}/manifest.json" not in known for name in names)

    def _note(self, error: Exception) -> None:
        if self._problem is None:
            logger.warning("copy: %s The run continues, and the copy is tried again.", error)
        self._problem = str(error) or repr(error)

    def _copy(self) -> float:
        """Make the copy equal to the run. Return the seconds that reading and hashing took."""
        self._open()
        self._renew()
        start_time, sending = time.monotonic(), 0.0
        previous = self._newest.files if self._newest is not None else {}
        with take_snapshot(self._folder, previous) as snapshot:
            taken_at, now = time.monotonic(), time.time()
            for link in sorted({*snapshot.links} - self._links):
                logger.warning(
                    "copy: %s links to a folder, or out of the run, and is not copied; keep another copy of its target.",
                    link,
                )
            self._links |= {*snapshot.links}
            files: dict[str, FileEntry] = {}
            for path, staged in snapshot.files.items():
                before = previous.get(path)
                if before is not None and not staged.is_new and self._written.issuperset(before.blocks):
                    files[path] = before
                else:
                    files[path], seconds = self._send(staged)
                    sending += seconds
            step = _read_step(snapshot.files["status.json"].source) if "status.json" in snapshot.files else 0
        if files != previous:
            self._publish(CopyManifest(time=now, step=step, files=files))
        elif self._has_leftovers:
            self._delete_old(self._ownership.generation)
        self._copied_at = taken_at
        return time.monotonic() - start_time - sending

    def _open(self) -> None:
        """Read what the store contains of this generation. If its objects were deleted, the copy starts again."""
        has_owner = self._ownership.check()
        if self._is_open and has_owner:
            return
        self._ownership.renew()
        generation = self._ownership.generation
        # Without an owner, the objects of a list of files may be deleted, too.
        newest = read_newest(self._store, generation) if has_owner else None
        names = list_manifests(self._store, generation)
        self._number = max((parse_name(name)[1] for name in names), default=0)
        self._newest = newest[1] if newest is not None else None
        # Blocks that no list contains may be incomplete.
        self._written = set(self._newest.blocks) if self._newest is not None else set()
        self._kept = {newest[0]: newest[1].blocks} if newest is not None else {}
        self._is_open = self._has_leftovers = True

    def _send(self, staged: Staged) -> tuple[FileEntry, float]:
        """Write the blocks of a file that the store lacks. Return the file's entry and the seconds of writing."""
        blocks: list[str] = []
        sending, rest = 0.0, staged.size
        with staged.source.open("rb") as file:
            while rest > 0 and (content := file.read(min(BLOCK_BYTES, rest))):
                rest -= len(content)
                block = hash_block(content)
                blocks.append(block)
                if block not in self._written:
                    start_time = time.monotonic()
                    fault_point("copy.sending")
                    self._store.write(name_block(self._ownership.generation, block), content)
                    self._written.add(block)
                    self._num_bytes += len(content)
                    self._renew()
                    sending += time.monotonic() - start_time
        size = staged.size - rest
        return FileEntry(size=size, modified=staged.modified, mode=staged.mode, blocks=tuple(blocks)), sending

    def _renew(self) -> None:
        """Renew the ownership if it is time, and note that the store answers."""
        self._active_at = time.monotonic()
        if self._active_at - self._renewed_at > RENEW_SECONDS:
            self._require_owner()
            self._ownership.renew()
            self._renewed_at = self._active_at

    def _require_owner(self) -> None:
        if not self._ownership.check():
            raise StoreError(f"{self._store.url} was deleted while the run was copied.")

    def _publish(self, manifest: CopyManifest) -> None:
        """Write the list of files, and delete what it replaces."""
        generation = self._ownership.generation
        fault_point("copy.publishing")
        self._require_owner()
        # A write that failed may still be carried out later, so its number is not used again.
        self._number += 1
        name = name_manifest(generation, self._number)
        self._store.write(name, manifest.encode())
        self._newest = manifest
        self._kept[name] = manifest.blocks
        self._delete_old(generation)

    def _delete_old(self, generation: str) -> None:
        for name in list(self._kept)[:-NUM_KEPT]:
            del self._kept[name]
            self._store.delete(name)
        needed = frozenset[str]().union(*self._kept.values())
        for block in sorted(self._written - needed):
            self._written.discard(block)
            self._store.delete(name_block(generation, block))
        if self._has_leftovers:
            self._delete_leftovers(generation, needed)

    def _delete_leftovers(self, generation: str, needed: frozenset[str]) -> None:
        """Delete the objects of earlier generations, and those that an earlier process of this one has left. Objects with
        other names stay: no copy wrote them."""
        wanted = {*self._kept, *(name_block(generation, block) for block in needed)}
        for name in self._store.list():
            found = find_generation(name)
            is_old = found is not None and found[:4] <= generation[:4] and name not in wanted
            if is_old or is_part_of_owner(name):
                self._store.delete(name)
        self._has_leftovers = False


def _read_step(status: Path) -> int:
    return int(json.loads(status.read_text("utf-8")).get("step") or 0)
