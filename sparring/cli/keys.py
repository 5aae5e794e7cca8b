"""`sparring keys`: create, list, rotate and revoke keys by name."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from sparring.cli.command import Json, keys_app, print_json, report_failures, say
from sparring.errors import UsageError
from sparring.tracking import Console
from sparring.web.keys import NAME, PERMISSIONS, NamedKey, create_key, hash_key, read_keys, write_keys

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}

Name = Annotated[str, typer.Argument(metavar="NAME", help="Who uses the key: letters, digits, - and _.")]
File = Annotated[Path, typer.Option("--keys", metavar="FILE", help="The file of keys.")]
Count = Annotated[int | None, typer.Option(min=1, metavar="N")]


@keys_app.command()
@report_failures
def create(
    name: Name,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help="complete (by default), admin, work or read. May be repeated."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="30d, 12h or a date such as 2027-01-31; by default never.")
    ] = None,
    requests_per_minute: Count = None,
    tokens_per_day: Count = None,
    connections: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The largest number of requests in progress.")
    ] = None,
    keys: File = Path("keys.toml"),
    as_json: Json = False,
) -> None:
    """Create a key and print it. The file has only its hash, so it cannot be shown again."""
    if not re.fullmatch(NAME, name):
        raise UsageError(f"{name!r} is not a name for a key; use at most 64 letters, digits, - and _.")
    if unknown := [one for one in scope or () if one not in PERMISSIONS]:
        raise UsageError(f"--scope {unknown[0]!r} is not a scope; use {', '.join(PERMISSIONS)}.")
    key = create_key()
    fields: dict[str, Any] = {
        "name": name,
        "hash": hash_key(key),
        "scope": tuple(dict.fromkeys(scope or ["complete"])),
        "expires": None if expires is None else _read_moment(expires),
        "requests_per_minute": requests_per_minute,
        "tokens_per_day": tokens_per_day,
        "connections": connections,
    }
    with _changed(keys) as named:
        if name in named:
            raise UsageError(f"{keys} has a key {name!r}; `sparring keys rotate {name}` replaces it.")
        named[name] = NamedKey(**fields)
    _show_new(name, key, keys, as_json)


@keys_app.command("list")
@report_failures
def list_keys(keys: File = Path("keys.toml"), as_json: Json = False) -> None:
    """List the keys with their scopes and limits."""
    named = read_keys(keys)
    if as_json:
        print_json([one.model_dump(mode="json", exclude={"hash", "old_hash"}) for one in named.values()])
        return
    columns = ("name", "scope", "expires", "requests/minute", "tokens/day", "connections")
    Console().table(str(keys), columns, [_describe(one) for one in named.values()])


@keys_app.command()
@report_failures
def rotate(
    name: Name,
    overlap: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long the old key stays valid, such as 1h; by default not at all."),
    ] = None,
    keys: File = Path("keys.toml"),
    as_json: Json = False,
) -> None:
    """Replace a key and print the new one. Its scope and limits stay."""
    key = create_key()
    with _changed(keys) as named:
        old = _find(named, name, keys)
        kept = {"old_hash": None, "old_expires": None}
        if overlap is not None:
            kept = {"old_hash": old.hash, "old_expires": datetime.now(UTC) + _read_time("--overlap", overlap)}
        named[name] = old.model_copy(update={"hash": hash_key(key), **kept})
    _show_new(name, key, keys, as_json)


@keys_app.command()
@report_failures
def revoke(name: Name, keys: File = Path("keys.toml")) -> None:
    """Delete a key. Running servers refuse it from their next request on."""
    with _changed(keys) as named:
        _find(named, name, keys)
        del named[name]
    say(f"{name} is revoked")


def _describe(key: NamedKey) -> tuple[str, ...]:
    """Return the cells of a key in the table."""
    expires = "never"
    if key.expires is not None:
        is_past = key.expires <= datetime.now(UTC)
        expires = f"{key.expires.astimezone(UTC):%Y-%m-%d %H:%M} UTC{' (expired)' if is_past else ''}"
    limits = (key.requests_per_minute, key.tokens_per_day, key.connections)
    return key.name, ", ".join(key.scope), expires, *("any" if limit is None else f"{limit:,}" for limit in limits)


def _show_new(name: str, key: str, keys: Path, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "api_key": key})
    else:
        say(f"the key of {name}, which {keys} does not contain and which is not shown again:")
        say(key)


def _find(named: dict[str, NamedKey], name: str, path: Path) -> NamedKey:
    if name not in named:
        raise UsageError(f"{path} has no key {name!r}; it has {', '.join(named) or 'none'}.")
    return named[name]


@contextmanager
def _changed(path: Path) -> Iterator[dict[str, NamedKey]]:
    """Yield the keys of a file for changes, and write them. Other commands that change it wait. A missing file has no
    keys. Raises UsageError if the file cannot be written."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}. Give another --keys FILE.") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        named = dict(read_keys(path)) if path.exists() else {}
        yield named
        write_keys(path, named.values())
    finally:
        os.close(folder)


def _read_moment(text: str) -> datetime:
    """Return the moment of a date, or of a time from now. Raises UsageError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return datetime.now(UTC) + _read_time("--expires", text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _read_time(option: str, text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,5})([mhd])", text)
    if match is None:
        hint = ", or a date such as 2027-01-31" if option == "--expires" else ""
        raise UsageError(f"{option} {text!r} cannot be read; write 30m, 12h or 7d{hint}.")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
