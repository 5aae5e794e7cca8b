"""Who may use a server: its address, key and certificate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sparring.errors import UsageError
from sparring.runtime.address import Address
from sparring.web.audit import AuditLog
from sparring.web.certificate import Certificate
from sparring.web.gate import Gate
from sparring.web.keys import Keys, NamedKey, create_key, single_key

if TYPE_CHECKING:
    from sparring.web.listener import ASGIApp, Listener

KEY_VARIABLE: Final = "SPARRING_API_KEY"
ADMIN_VARIABLE: Final = "SPARRING_ADMIN_KEY"
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
    admin_key: str | None = None
    """The key of the operator, who changes the versions that answer. None: no one can change them."""
    keys: Keys | None = None
    """The keys by name, instead of the two others."""
    audit: AuditLog | None = None
    tls: Certificate | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Further names by which clients may address a server on a loopback address."""

    @property
    def is_local(self) -> bool:
        """Whether only processes on this machine can connect."""
        return Address(self.host, self.port).is_loopback

    def open_gate(self, server: str) -> Gate:
        """Return the gate of a server with this name. Without a key, what needs no administrator is free."""
        own: list[NamedKey] = []
        if self.api_key is not None:
            own.append(single_key(self.api_key, "complete"))
        if self.admin_key is not None:
            own.append(single_key(self.admin_key, "admin"))
        is_free = self.api_key is None and self.keys is None
        return Gate(server, self.keys or Keys(own), free=("complete", "read") if is_free else (), audit=self.audit)

    def listen(self, app: ASGIApp) -> Listener:
        """Return a server of an app. It does not listen yet."""
        from sparring.web.listener import Listener  # with uvicorn, which other commands do not need

        return Listener(app, self.host, self.port, tls=self.tls, allowed_hosts=self.allowed_hosts)


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
    keys: Path | None = None,
    audit_log: Path | None = None,
) -> Access:
    """Return the access to a server with the keys of a file. Without one, with the key in SPARRING_API_KEY, or with a new
    one if the variable is not set, and with the operator's key in SPARRING_ADMIN_KEY.

    Raises UsageError if other machines can reach the server and it has no key (`has_key`), a short one, or neither a
    certificate nor permission to do without one (`is_plain_allowed`), or if the keys or the log cannot be used.
    """
    if keys is not None and not has_key:
        raise UsageError(f"--no-key does without a key, but --keys {keys} has keys; remove one of them.")
    given = None if keys is not None else os.environ.get(KEY_VARIABLE) or None
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
    new = create_key() if has_key and given is None and keys is None else None
    return Access(
        host=host,
        port=port,
        api_key=given or new,
        is_new_key=new is not None,
        admin_key=None if keys is not None else os.environ.get(ADMIN_VARIABLE) or None,
        keys=None if keys is None else Keys.of_file(keys),
        audit=None if audit_log is None else AuditLog(audit_log),
        tls=tls,
        allowed_hosts=tuple(allowed_hosts),
    )


def choose_page_access(
    host: str,
    port: int,
    *,
    tls: Certificate | None = None,
    is_plain_allowed: bool = False,
    allowed_hosts: Sequence[str] = (),
    keys: Path | None = None,
    audit_log: Path | None = None,
) -> Access:
    """Return the access to a server of pages, which needs no key on loopback addresses unless there is a file of keys.

    Raises UsageError as `choose_access`, and if other machines can reach the server and there is no file of keys.
    """
    if keys is None:
        if not Address(host, port).is_loopback:
            raise UsageError(
                f"--host {host} can be reached from other machines, and the page shows everything that an agent received. "
                "Create keys with `sparring keys create NAME --scope read` and add --keys FILE, or listen on 127.0.0.1."
            )
        audit = None if audit_log is None else AuditLog(audit_log)
        return Access(host=host, port=port, tls=tls, allowed_hosts=tuple(allowed_hosts), audit=audit)
    return choose_access(
        host,
        port,
        tls=tls,
        is_plain_allowed=is_plain_allowed,
        allowed_hosts=allowed_hosts,
        keys=keys,
        audit_log=audit_log,
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
