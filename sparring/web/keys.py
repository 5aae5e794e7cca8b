"""Keys by name: what each may do, until when and how often. A file of them holds hashes, never keys."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, final

import pydantic

from sparring.errors import UsageError
from sparring.runtime.logs import get_logger

_logger = get_logger(__name__)

Permission: TypeAlias = Literal["complete", "admin", "work", "read"]
"""`complete`: sample from the model. `admin`: change the versions that answer. `work`: take episodes from a queue. `read`:
read reports and metrics."""
PERMISSIONS: Final[tuple[Permission, ...]] = ("complete", "admin", "work", "read")
NAME: Final = r"[A-Za-z0-9_-]{1,64}"

_Count: TypeAlias = Annotated[int, pydantic.Field(ge=1)]
_Hash: TypeAlias = Annotated[str, pydantic.Field(pattern="^[0-9a-f]{64}$")]


def _as_moment(value: Any) -> Any:
    """Return a date as its first moment. Times without a zone are in UTC."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time_of_day())
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


_Moment: TypeAlias = Annotated[datetime, pydantic.BeforeValidator(_as_moment)]


class NamedKey(pydantic.BaseModel):
    """One key of a file: its SHA-256 hash, and its limits. A limit of None does not apply."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Annotated[str, pydantic.Field(pattern=f"^{NAME}$")]
    hash: _Hash
    scope: Annotated[tuple[Permission, ...], pydantic.Field(strict=False, min_length=1)]
    expires: _Moment | None = None
    requests_per_minute: _Count | None = None
    tokens_per_day: _Count | None = None
    connections: _Count | None = None
    """The largest number of requests in progress."""
    old_hash: _Hash | None = None
    """The hash of the key before the last rotation, which is valid until `old_expires`."""
    old_expires: _Moment | None = None

    def matches(self, digest: str, now: float) -> bool:
        """Return whether a hash is that of this key, or of the previous one before `old_expires`. Takes the same time for
        all hashes."""
        is_old_valid = self.old_hash is not None and self.old_expires is not None and now < self.old_expires.timestamp()
        is_current, is_old = hmac.compare_digest(digest, self.hash), hmac.compare_digest(digest, self.old_hash or "")
        return is_current or (is_old and is_old_valid)


def create_key() -> str:
    """Return a new key of 256 random bits."""
    return f"sk-{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def single_key(key: str, permission: Permission) -> NamedKey:
    """Return a key without limits, for servers that have one key for a permission."""
    return NamedKey(name=f"{permission}-key", hash=hash_key(key), scope=(permission,))


@final
class Keys:
    """The keys that a server accepts. Those of a file are read again when the file has changed."""

    def __init__(self, named: Iterable[NamedKey], *, path: Path | None = None) -> None:
        self.path = path
        self._named = tuple(named)
        self._seen = None if path is None else _state_of(path)

    @classmethod
    def of_file(cls, path: Path) -> Keys:
        """Return the keys of a file. Raises UsageError if it cannot be read, or if other users can."""
        return cls(read_keys(path).values(), path=path)

    def find(self, key: str, now: float) -> NamedKey | None:
        """Return the name and limits of a key, or None if it is unknown. Compares it with every hash. `now` is in seconds
        since 1970."""
        self._follow()
        digest = hash_key(key)
        found = [one for one in self._named if one.matches(digest, now)]
        return found[0] if found else None

    def is_used(self, permission: Permission) -> bool:
        """Whether any key has a permission."""
        self._follow()
        return any(permission in one.scope for one in self._named)

    def _follow(self) -> None:
        """Read the file again if it has changed. After an error, the keys stay as they were."""
        if self.path is None or (state := _state_of(self.path)) == self._seen:
            return
        self._seen = state
        try:
            self._named = tuple(read_keys(self.path).values())
        except UsageError as error:
            _logger.error("The keys stay as they were: %s", error)


def read_keys(path: Path) -> Mapping[str, NamedKey]:
    """Return the keys of a file by name. Raises UsageError if it cannot be read, or if other users can read it."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = tomllib.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"The keys in {path} cannot be read: {error}. `sparring keys create` writes such files."
        ) from error
    if mode & 0o077:
        raise UsageError(f"{path} has mode {mode:04o}, so other users can access it; run `chmod 600 {path}`.")
    try:
        return {name: NamedKey(**{**table, "name": name}) for name, table in content.items()}
    except (TypeError, pydantic.ValidationError) as error:
        problem = error
        if isinstance(error, pydantic.ValidationError):
            first = error.errors(include_input=False, include_url=False)[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UsageError(f"The keys in {path} are not valid: {problem}. docs/security.md describes the file.") from None


def write_keys(path: Path, keys: Iterable[NamedKey]) -> None:
    """Replace a file of keys. Servers that read it see the old or the new content."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("# Written by `sparring keys`. It contains hashes, never keys.\n")
        for key in keys:
            fields = key.model_dump(exclude={"name"}, exclude_none=True)
            file.write(f"\n[{key.name}]\n" + "".join(f"{name} = {_as_toml(value)}\n" for name, value in fields.items()))
    temporary.replace(path)


def _as_toml(value: str | int | datetime | tuple[str, ...]) -> str:
    match value:
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        case tuple():
            return f"[{', '.join(map(_as_toml, value))}]"
        case str():
            return f'"{value}"'
    return str(value)


def _state_of(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size)
