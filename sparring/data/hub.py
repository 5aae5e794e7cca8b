"""Reads data sets of the Hugging Face hub, and folders in the same layout, with the library `datasets`.

An address is `hf://OWNER/NAME`, `hf://OWNER/NAME@REVISION`, or `hf://./FOLDER` or `hf:///FOLDER` for a local folder. It may end
with `?split=NAME&config=NAME&limit=N`. With `limit`, the rows are streamed and only the first N are read. Code of a data set is
never run. The token of a private data set is the one of the library: `HF_TOKEN`, or the login of `hf auth login`.
"""

from __future__ import annotations

import datetime
import difflib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from sparring.data.files import Row, tasks_of
from sparring.errors import DataError, ServiceError, UsageError
from sparring.run_folders.inputs import note_revision
from sparring.types import Task

SCHEME = "hf://"
TIMEOUT = 20.0
"""The seconds after which a hub that does not answer is given up."""
_COMMIT = re.compile("[0-9a-f]{40}")
_OPTIONS = ("split", "config", "limit")
_NOT_TEXT = ("Image", "Audio", "Video", "Pdf", "Nifti")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAddress:
    """A split of a data set."""

    name: str
    """OWNER/NAME, or a path that starts with `.` or `/`."""
    revision: str | None = None
    """A branch, a tag or a commit; None is the newest commit."""
    split: str = "train"
    config: str | None = None
    limit: int | None = None
    """The number of rows to read; None reads all."""

    @property
    def is_folder(self) -> bool:
        """Whether the data set is a folder on this machine."""
        return self.name.startswith((".", "/"))

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a full commit, which never changes."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None


def parse_address(source: str) -> HubAddress:
    """Return the parts of an address. Raises UsageError, which names the part that cannot be read."""
    place, _, query = source.removeprefix(SCHEME).partition("?")
    is_folder = place.startswith((".", "/"))
    name, _, revision = (place, "", "") if is_folder else place.partition("@")
    if not is_folder and (name.count("/") != 1 or not all(name.split("/"))):
        raise UsageError(
            f"{source!r} names no data set; write hf://OWNER/NAME, hf://OWNER/NAME@REVISION, or hf://./FOLDER for a folder."
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    for key, value in options.items():
        if key not in _OPTIONS:
            near = difflib.get_close_matches(key, _OPTIONS, n=1)
            raise UsageError(f"{source!r} has the option {key!r}; write {' or '.join(near or _OPTIONS)} instead.")
        if not value:
            raise UsageError(f"{source!r} has no value for {key!r}; write {key}=VALUE, or leave it out.")
    limit = options.get("limit")
    if limit is not None and not (limit.isdecimal() and int(limit)):
        raise UsageError(f"{source!r} has limit={limit}; write the number of rows to read, at least 1.")
    return HubAddress(
        name=name,
        revision=revision or None,
        split=options.get("split", "train"),
        config=options.get("config"),
        limit=None if limit is None else int(limit),
    )


def read_hub_tasks(source: str, folder: Path, columns: Mapping[str, str]) -> list[Task]:
    """Return the tasks of a data set, in its order. `folder` is the folder of the recipe, where relative paths start.

    `columns` is as in `read_tasks`. A row without a column `id` has the id SPLIT-NUMBER. The commit of the data set is
    recorded for the run's manifest. Raises UsageError if the address cannot be read, DataError if the split or a row
    cannot be used, and ServiceError if the library is missing or the data set cannot be fetched.
    """
    address = parse_address(source)
    with _explained(source):
        path, revision = _resolve(address, folder)
        rows = list(_rows(source, address, path, revision, id_column=columns.get("id", "id")))
    if not rows:
        raise DataError(f"{source} has no rows, so there is nothing to run; name another split.")
    if revision is not None:
        note_revision(source, revision)
    return list(tasks_of(source, rows, columns, id_prefix=f"{address.split}-"))


def pin_address(source: str) -> str:
    """Return the address with the commit that its revision is now. The address of a folder is returned unchanged.

    Raises UsageError if the address cannot be read, and ServiceError if the library is missing or the hub cannot be asked.
    """
    address = parse_address(source)
    if address.is_folder or address.is_pinned:
        return source
    with _explained(source):
        _, commit = _resolve(address, Path())
    place, mark, query = source.partition("?")
    return f"{place.partition('@')[0]}@{commit}{mark}{query}"


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Replace the errors of the libraries by ones that a user can act on. Raises ServiceError if the library is missing."""
    try:
        import datasets  # noqa: F401 (a missing library is reported before the hub is asked)
    except ImportError as error:
        raise ServiceError(
            f"{source} needs the library `datasets`, which is not installed; install it with "
            "`pip install 'sparring[datasets]'`."
        ) from error
    try:
        yield
    except (UsageError, DataError, ServiceError):
        raise
    except Exception as error:
        # The libraries raise many kinds of errors, and those of their HTTP client.
        raise _explain(source, error) from error


def _resolve(address: HubAddress, folder: Path) -> tuple[str, str | None]:
    """Return what to load and its commit: the name on the hub, the cached copy without a network, or a local folder."""
    import huggingface_hub
    from huggingface_hub import constants

    if address.is_folder:
        path = folder / address.name
        if not path.is_dir():
            raise DataError(f"{path} is not a folder; give a folder with the files of a data set.")
        return str(path), None
    if constants.HF_HUB_OFFLINE:
        return _find_cached(address)
    try:
        info = huggingface_hub.HfApi().dataset_info(address.name, revision=address.revision, timeout=TIMEOUT)
    except Exception:
        if address.is_pinned:
            # A commit never changes, so a copy in the cache is as good as the hub.
            with suppress(Exception):
                return _find_cached(address)
        raise
    return address.name, info.sha


def _find_cached(address: HubAddress) -> tuple[str, str]:
    """Return the folder of the data set in the cache, and its commit. Raises LocalEntryNotFoundError."""
    import huggingface_hub

    folder = huggingface_hub.snapshot_download(
        address.name, repo_type="dataset", revision=address.revision, local_files_only=True
    )
    return folder, Path(folder).name


def _rows(
    source: str, address: HubAddress, path: str, revision: str | None, *, id_column: str
) -> Iterator[tuple[str, Row]]:
    import datasets

    on_hub = path == address.name and not address.is_folder
    loaded: Any = datasets.load_dataset(
        path,
        name=address.config,
        split=address.split,
        revision=revision if on_hub else None,
        # Otherwise the library would keep a converted copy, which it uses even if the files of a folder have changed.
        streaming=address.limit is not None or not on_hub,
    )
    for name, feature in (loaded.features or {}).items():
        if type(feature).__name__ in _NOT_TEXT:
            raise DataError(
                f"{source}: the column {name!r} is of type {type(feature).__name__}, but tasks consist of text and JSON "
                "values; use a data set without this column."
            )
    for number, row in enumerate(islice(loaded, address.limit), start=1):
        values = {name: _json_value(value, f"{source}, row {number}, column {name!r}") for name, value in row.items()}
        if isinstance(values.get(id_column), int):
            values[id_column] = str(values[id_column])
        yield f"row {number}", values


def _json_value(value: Any, where: str) -> Any:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: {type(value).__name__} is not a JSON value; use a data set without it.") from error
    return value


def _explain(source: str, error: Exception) -> DataError | ServiceError:
    """Return the error that a user can act on."""
    import datasets.exceptions as data_errors
    from huggingface_hub import errors

    reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason given'])[0]}"
    if isinstance(error, errors.RevisionNotFoundError):
        return ServiceError(f"{source}: the data set has no such revision; name a branch, a tag or a commit.")
    if isinstance(error, errors.RepositoryNotFoundError | data_errors.DatasetNotFoundError):
        return ServiceError(
            f"{source}: the hub has no such data set, or it is private or gated. Check the name; for a private one, set "
            "HF_TOKEN to a token that may read it, or log in with `hf auth login`."
        )
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return ServiceError(
            f"{source}: HF_HUB_OFFLINE is set, and the cache does not have all files of the data set. Fetch it with "
            "`hf download --repo-type dataset OWNER/NAME`, or unset HF_HUB_OFFLINE."
        )
    if isinstance(error, RuntimeError) and "scripts are no longer supported" in str(error):
        return ServiceError(
            f"{source}: the data set consists of a program that loads it, which is never run; use a data set of files "
            "(parquet, JSON, CSV)."
        )
    if isinstance(error, ValueError | data_errors.DatasetsError):
        return DataError(f"{source} cannot be read ({reason}); check split, config and files.")
    return ServiceError(
        f"{source} cannot be fetched from the hub ({reason}); check the network and HF_ENDPOINT, or give a folder "
        "(hf://./FOLDER)."
    )
