"""Refuses requests that web pages make a browser send.

A browser on the same machine reaches servers on loopback addresses, and a page that it shows may send requests to them
without asking the user. A page of another origin is recognized by the Origin header, and a foreign name that resolves to
a loopback address (DNS rebinding) by the Host header.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from sparring.runtime.address import Address

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


def find_host_names(host: str, allowed: Iterable[str]) -> frozenset[str] | None:
    """Return the names in the Host header under which clients may address a server that listens on `host`, or None for
    any name. Servers on other than loopback addresses have names that they cannot know, and need a key."""
    allowed = {name.lower() for name in allowed}
    if not allowed and not Address(host, 0).is_loopback:
        return None
    own = f"[{host}]" if ":" in host else host
    return frozenset({*LOOPBACK_NAMES, own.lower(), *allowed})


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request of a web page."""

    status: int
    message: str
    code: str

    @property
    def body(self) -> bytes:
        """The error as JSON, in the form of the OpenAI API."""
        error = {"message": self.message, "type": "invalid_request_error", "code": self.code}
        return json.dumps({"error": error}).encode()


@final
class HostCheck:
    """An app that passes on requests of programs, and refuses those of web pages of other origins."""

    def __init__(self, app: ASGIApp, names: frozenset[str] | None) -> None:
        """Check requests before `app`. `names` are the allowed hosts, without ports; None allows any."""
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = origin = ""
        num_hosts = 0
        for name, value in scope["headers"]:
            if name == b"host":
                host, num_hosts = value.decode("latin-1").lower(), num_hosts + 1
            elif name == b"origin":
                origin = value.decode("latin-1").lower()
        refusal = find_refusal(host, origin, self._names, num_hosts)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await _send(send, refusal)


def find_refusal(host: str, origin: str, names: frozenset[str] | None, num_hosts: int = 1) -> Refusal | None:
    """Return why a request is refused, or None. `host` and `origin` are its headers in lower case, "" if absent; `names`
    are those of `find_host_names`; `num_hosts` is the number of Host headers."""
    if origin and origin.partition("://")[2] != host:
        message = f"Requests of web pages of other origins ({origin[:80]!r}) are refused."
        return Refusal(403, message, "cross_origin")
    if num_hosts and names is not None and (num_hosts > 1 or _without_port(host) not in names):
        message = (
            f"The host {host[:80]!r} is not a name of this server. Use 127.0.0.1 or localhost; the server's operator may "
            "allow other names."
        )
        return Refusal(421, message, "unknown_host")
    return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


async def _send(send: Send, refusal: Refusal) -> None:
    body = refusal.body
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
