"""The first bytes of a connection between a run and a worker on another machine: both prove that they have the key.

Neither side sends the key. The worker sends MAGIC and a random number, and the run does the same. The worker then sends
the HMAC of both numbers under the key. The run answers with one byte, whether it is right, and with its own HMAC. Nothing
about the run is sent before that.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib.metadata
import secrets
import socket
from contextlib import suppress
from typing import Final

from sparring.errors import ServiceError

PROTOCOL: Final = 2
"""The version of the messages. The run and its workers must have the same version."""
MAGIC: Final = b"sparring-worker\n"
HANDSHAKE_SECONDS: Final = 10.0
"""Time limit for the handshake, and for opening a connection."""
LOST_SECONDS: Final = 60
"""Time after which a connection is closed whose other machine does not acknowledge what was sent."""
_NUMBER_BYTES = 32
_REFUSED, _ADMITTED = b"\0", b"\1"


class WrongKey(Exception):
    """The other side has another key, or does not know this protocol."""


async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> None:
    """Run the handshake on the side of the run.

    Raises WrongKey if the other side is no worker with this key, EOFError or OSError if it closes the connection, and
    TimeoutError.
    """
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        if await reader.readexactly(len(MAGIC)) != MAGIC:
            raise WrongKey("it sent something other than a worker sends")
        theirs, ours = await reader.readexactly(_NUMBER_BYTES), secrets.token_bytes(_NUMBER_BYTES)
        writer.write(MAGIC + ours)
        proof = await reader.readexactly(hashlib.sha256().digest_size)
        if not hmac.compare_digest(proof, _proof(key, b"worker", theirs, ours)):
            writer.write(_REFUSED)
            raise WrongKey("it has another key")
        writer.write(_ADMITTED + _proof(key, b"run", theirs, ours))


async def present(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, where: str) -> None:
    """Run the handshake on the side of the worker.

    Raises ServiceError if the run has another key, or if the server at `where` is not a run. Raises EOFError or OSError
    if the connection is closed, and TimeoutError.
    """
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        ours = secrets.token_bytes(_NUMBER_BYTES)
        writer.write(MAGIC + ours)
        if await reader.readexactly(len(MAGIC)) != MAGIC:
            raise ServiceError(f"{where} is not a run that waits for workers; check the address.")
        theirs = await reader.readexactly(_NUMBER_BYTES)
        writer.write(_proof(key, b"worker", ours, theirs))
        is_admitted = await reader.readexactly(1) == _ADMITTED
        expected = _proof(key, b"run", ours, theirs)
        if not is_admitted or not hmac.compare_digest(await reader.readexactly(len(expected)), expected):
            raise ServiceError(
                f"the run at {where} has another key. Set SPARRING_API_KEY to the key that the run was started with."
            )


def installed_version() -> str:
    """Return the version of Sparring, which a run and its workers must share."""
    return importlib.metadata.version("sparring")


def notice_loss(writer: asyncio.StreamWriter) -> None:
    """Let the kernel close the connection if the other machine is gone. A process there that is only paused keeps it."""
    found: socket.socket = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": LOST_SECONDS * 1000}
    for name, value in options.items():
        if hasattr(socket, name):  # not all systems have each of them
            with suppress(OSError):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _proof(key: bytes, side: bytes, worker_number: bytes, run_number: bytes) -> bytes:
    return hmac.digest(key, b"\n".join((MAGIC, side, worker_number, run_number)), "sha256")
