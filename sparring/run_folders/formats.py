"""Versions of stored formats.

Each format has a number, next to the code that writes it. The number increases with a change that earlier versions of
Sparring cannot read. From then on, the reader converts what earlier versions wrote.
"""

from __future__ import annotations

import importlib.metadata

from sparring.errors import DataError, SparringError


def require_format(
    what: object,
    found: object,
    newest: int,
    *,
    oldest: int | None = None,
    otherwise: str = "restore it",
    error: type[SparringError] = DataError,
) -> None:
    """Raise `error` if a format is not one of `oldest` (by default only `newest`) to `newest`, which this version reads.

    `what` is the file. `otherwise` is what the user can do instead of using another version.
    """
    least = newest if oldest is None else oldest
    if isinstance(found, int) and least <= found <= newest:
        return
    if isinstance(found, int) and found > newest:
        advice = "A newer version wrote it: update Sparring (pip install --upgrade sparring)"
    else:
        advice = "Use the version of Sparring that wrote it"
    reads = f"format {newest}" if least == newest else f"formats {least} to {newest}"
    version = importlib.metadata.version("sparring")
    raise error(f"{what} has format {found!r}, but Sparring {version} reads {reads}. {advice}, or {otherwise}.")
