"""Which run folder writes a copy. Two machines that train the same run must not both write it.

`owner.json` in the store names the generation of the run folder that writes the copy, and is renewed while it does.
`copy.json` in the run folder names the generation that this folder writes. Both are compared before each list of files
is written. No clocks are compared: a run that takes over a copy watches for a while whether its owner still renews it.
"""

from __future__ import annotations

import json
import os
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import final

from sparring.copies.manifest import OWNER, is_foreign, list_manifests, parse_name, read_newest
from sparring.copies.snapshot import CLAIM
from sparring.copies.store import Store, StoreError
from sparring.errors import DataError, UsageError
from sparring.run_folders import RunFolder
from sparring.run_folders.run_folder import write_json
from sparring.runtime.json_values import parse_json
from sparring.runtime.logs import get_logger

logger = get_logger(__name__)

LEASE_SECONDS = 30.0
"""A copy that its owner has not renewed for this time may be taken over."""
POLL_SECONDS = 2.0


class TakenOver(Exception):
    """Raised when another run folder writes the copy now."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(f"the copy is now written by a run on {owner.host}")
        self.owner = owner


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The content of `owner.json`."""

    generation: str
    run: float
    """When the run was created, which identifies it."""
    host: str
    pid: int
    renewed: float
    """Seconds since 1970 on the owner's clock."""
    is_released: bool
    """Whether the owner has ended and its copy is complete."""


@final
class Ownership:
    """The right of a run folder to write a copy."""

    def __init__(self, store: Store, owner: Owner) -> None:
        self._store, self._owner = store, owner

    @property
    def generation(self) -> str:
        return self._owner.generation

    def check(self) -> bool:
        """Return whether `owner.json` still exists. If it is damaged, write it again.

        Raises TakenOver if another run folder is the owner, StoreError, and DataError if it is damaged and a list of
        files shows that another run folder wrote it.
        """
        try:
            owner = read_owner(self._store)
        except DataError:
            if any(parse_name(name)[0] > self.generation for name in list_manifests(self._store)):
                raise
            logger.warning("copy: %s/%s is damaged, so it is written again.", self._store.url, OWNER)
            self.renew()
            return True
        if owner is not None and owner.generation != self.generation:
            raise TakenOver(owner)
        return owner is not None

    def renew(self, *, is_released: bool = False) -> None:
        """Write `owner.json` again. Raises StoreError."""
        owner = replace(self._owner, pid=os.getpid(), renewed=time.time(), is_released=is_released)
        self._store.write(OWNER, json.dumps(asdict(owner)).encode())


def claim(
    store: Store,
    folder: RunFolder,
    *,
    is_resumed: bool,
    say: Callable[[str], object],
    lease_seconds: float = LEASE_SECONDS,
) -> Ownership:
    """Make a run folder the owner of a copy.

    A folder that already is its owner needs no connection to the store. Otherwise this waits up to `lease_seconds` if an
    owner may still be writing.

    Raises StoreError if the store cannot be used. Raises UsageError if the copy is of another run, is newer than the
    folder, or is still being written by another owner, and if there is no copy, but there are other objects.
    """
    run = float(folder.manifest().get("created", 0.0))
    owner = Owner(generation="", run=run, host=platform.node(), pid=os.getpid(), renewed=time.time(), is_released=False)
    generation = _read_claim(folder, store.url)
    if generation is not None:
        ownership = Ownership(store, replace(owner, generation=generation))
        try:
            ownership.check()
        except TakenOver as taken:
            raise UsageError(
                f"{folder.path} was continued on {taken.owner.host}, which writes the copy {store.url} now. Fetch that copy "
                "under another --runs-dir, or set run.copy_to to another address to continue from this folder."
            ) from None
        except StoreError as error:
            logger.warning("copy: %s The run continues, and the copy is tried again.", error)
        return ownership
    there = read_owner(store)
    newest = read_newest(store)
    if there is not None or newest is not None:
        _refuse_other(store, folder, there, run, is_resumed=is_resumed)
        if newest is not None and newest[1].step > (step := int(folder.status().get("step") or 0)):
            raise UsageError(
                f"{store.url} has step {newest[1].step} of this run, but {folder.path} has only step {step}. Move this "
                f"folder away, and fetch the copy: sparring runs fetch {store.url}"
            )
    elif foreign := [name for name in store.list() if is_foreign(name)]:
        raise UsageError(
            f"{store.url} contains objects that are not of a copy, such as {foreign[0]}. A copy needs an "
            f"address of its own: give {folder.path.name} another --name, set run.copy_to to another address, or move these "
            "objects away."
        )
    if there is not None and not there.is_released:
        _wait_for_end(store, there, say, lease_seconds)
    numbers = [int(parse_name(name)[0][:4]) for name in list_manifests(store)]
    numbers += [int(there.generation[:4])] if there is not None else []
    ownership = Ownership(store, replace(owner, generation=f"{max(numbers, default=0) + 1:04d}-{uuid.uuid4().hex[:8]}"))
    ownership.renew()
    try:
        ownership.check()
    except TakenOver as taken:
        raise UsageError(f"{store.url} was taken over by a run on {taken.owner.host} at the same moment.") from None
    write_json(folder.path / CLAIM, {"url": store.url, "generation": ownership.generation})
    return ownership


def read_owner(store: Store) -> Owner | None:
    """Return the owner of a copy, or None if there is none. Raises StoreError, and DataError if the object is
    damaged."""
    for wait in (0.0, 0.5):  # the owner may be writing it
        time.sleep(wait)
        content = store.read(OWNER)
        if content is None:
            return None
        try:
            return Owner(**parse_json(content))
        except (ValueError, TypeError):
            continue
    raise DataError(f"{store.url}/{OWNER} is damaged; delete it if no machine is writing this copy.")


def _refuse_other(store: Store, folder: RunFolder, there: Owner | None, run: float, *, is_resumed: bool) -> None:
    if is_resumed and (there is None or there.run == run):
        return
    raise UsageError(
        f"{store.url} contains the copy of another run{f' (from {there.host})' if there else ''}, which is not overwritten. "
        f"Give {folder.path.name} another --name, or set run.copy_to to another address. To continue that run: sparring "
        f"runs fetch {store.url}"
    )


def _wait_for_end(store: Store, owner: Owner, say: Callable[[str], object], lease_seconds: float) -> None:
    """Wait until the owner has not renewed its ownership for the length of a lease. Raises UsageError if it does."""
    say(f"waiting up to {lease_seconds:.0f} s to see whether {owner.host} still writes {store.url}")
    deadline = time.monotonic() + lease_seconds
    while (rest := deadline - time.monotonic()) > 0:
        time.sleep(min(POLL_SECONDS, rest))
        now = read_owner(store)
        if now is not None and now.is_released:
            return
        if now is not None and now != owner:
            raise UsageError(
                f"{store.url} is being written by process {now.pid} on {now.host}. Stop that run first, and fetch its copy "
                "again; or leave it running."
            )


def _read_claim(folder: RunFolder, url: str) -> str | None:
    """Return the generation that a run folder writes to a store, or None."""
    try:
        content = parse_json((folder.path / CLAIM).read_text("utf-8"))
        return str(content["generation"]) if content["url"] == url else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
