"""Who may use a server: its address, key and certificate."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sparring.errors import UsageError
from sparring.runtime.address import Address
from sparring.web.certificate import Certificate

KEY_VARIABLE: Final = "SPARRING_API_KEY"
SHORTEST_KEY: Final = 16
"""The fewest characters of a key for servers that other machines can reach, so that it cannot be guessed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where a server listens, and what it requires of clients."""

    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    """The key that clients must send. None: no key is required."""
    is_new_key: bool = False
    """Whether the key was made for this server, and is not known to anyone yet."""
    tls: Certificate | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Further names by which clients may address a server on a loopback address."""

    @property
    def is_local(self) -> bool:
        """Whether only processes on this machine can connect."""
        return Address(self.host, self.port).is_loopback


def read_certificate(certificate: Path | None, key: Path | None) -> Certificate | None:
    """Return the certificate of two options, or None if neither is given. Raises UsageError if only one is given, or if
    the files cannot be loaded."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-key" if key is None else "--tls-certificate"
        raise UsageError(f"A certificate needs its private key, and the other way round; add {missing} FILE.")
    found = Certificate(certificate, key)
    found.check()
    return found


def choose_access(
    host: str,
    port: int,
    *,
    has_key: bool = True,
    tls: Certificate | None = None,
    is_plain_allowed: bool = False,
    allowed_hosts: Sequence[str] = (),
) -> Access:
    """Return the access to a server with the key in SPARRING_API_KEY, or with a new one if the variable is not set.

    Raises UsageError if other machines can reach the server and it has no key (`has_key`), a short one, or neither a
    certificate nor permission to do without one (`is_plain_allowed`).
    """
    given = os.environ.get(KEY_VARIABLE) or None
    is_local = Address(host, port).is_loopback
    if not has_key:
        if given is not None:
            raise UsageError(f"--no-key does without a key, but {KEY_VARIABLE} is set; remove one of them.")
        if not is_local:
            raise UsageError(
                f"--host {host} can be reached from other machines, so clients need a key; remove --no-key, or listen on "
                "127.0.0.1."
            )
    check_key(given, host)
    if not is_local and tls is None and not is_plain_allowed:
        raise UsageError(
            f"--host {host} can be reached from other machines, and without TLS everyone on the way can read the key and the "
            "conversations. Add --tls-certificate FILE --tls-key FILE. In a private network, or behind a proxy that adds TLS, "
            "add --plain-http."
        )
    new = f"sk-{secrets.token_urlsafe(32)}" if has_key and given is None else None
    return Access(
        host=host,
        port=port,
        api_key=given or new,
        is_new_key=new is not None,
        tls=tls,
        allowed_hosts=tuple(allowed_hosts),
    )


def find_part_key(host: str) -> str | None:
    """Return the key of an engine or a learner, from SPARRING_API_KEY. On loopback addresses, it may be unset. Raises
    UsageError if other machines can reach the server and the key is unset or short."""
    key = os.environ.get(KEY_VARIABLE) or None
    if key is None and not Address(host, 0).is_loopback:
        raise UsageError(
            f"--host {host} can be reached from other machines, and {KEY_VARIABLE} is not set. Set it to a long random key here "
            "and in the run, for example to the output of `openssl rand -hex 32`. Without a key, listen on 127.0.0.1."
        )
    check_key(key, host)
    return key


def check_key(key: str | None, host: str) -> None:
    """Raises UsageError if other machines can reach the address and the key is short."""
    if key is not None and len(key) < SHORTEST_KEY and not Address(host, 0).is_loopback:
        raise UsageError(
            f"The key in {KEY_VARIABLE} has {len(key)} characters, which others can guess; use at least {SHORTEST_KEY}, for "
            "example the output of `openssl rand -hex 32`."
        )
