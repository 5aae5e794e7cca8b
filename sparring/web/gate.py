"""Admits requests to a server: checks their keys, enforces the quotas, and writes the audit log."""

from __future__ import annotations

import base64
import binascii
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

from sparring.web.audit import AuditLog, describe_path
from sparring.web.keys import Keys, NamedKey, Permission
from sparring.web.quotas import Failures, Used

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_VISIT = "sparring.visit"
"""Where the scope of a request has its `Visit`."""


class Refused(Exception):
    """The answer to a request that is not admitted."""

    def __init__(self, status: int, message: str, *, code: str, reason: str, retry_after: int | None = None) -> None:
        """Create a refusal. `reason` is for the audit log."""
        super().__init__(message)
        self.status, self.code, self.reason, self.retry_after = status, code, reason, retry_after


@dataclass(slots=True)
class Visit:
    """One request to a server."""

    address: str
    method: str
    path: str
    name: str | None = None
    """The name of the key, or None if it is unknown or not needed."""
    reason: str | None = None
    """Why the request was refused."""
    status: int | None = None
    """The status of the answer, or None if the client was gone before there was one."""
    num_tokens: int = 0
    """The number of tokens of the prompt and of the answer."""
    is_counted: bool = False
    """Whether the request is in progress for the quotas of its key."""
    is_logged: bool = True


@final
class Gate:
    """Decides about the requests to one server."""

    def __init__(
        self,
        server: str,
        keys: Keys | None = None,
        *,
        free: Collection[Permission] = (),
        audit: AuditLog | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a gate. `server` is its name in the audit log. What needs a permission in `free` needs no key. `clock`
        returns seconds since 1970."""
        self._server = server
        self._keys = Keys(()) if keys is None else keys
        self._free, self._audit, self._clock = frozenset(free), audit, clock
        self._used: defaultdict[str, Used] = defaultdict(Used)
        self._failures = Failures()

    @contextmanager
    def visit(self, address: str, method: str, path: str) -> Iterator[Visit]:
        """Return a context for one request. At its end, the request is written to the audit log."""
        visit = Visit(address, method, path)
        try:
            yield visit
        finally:
            self._end(visit)

    def admit(self, visit: Visit, key: str, permission: Permission) -> None:
        """Admit a request with this key, or with "" if it has none.

        Raises Refused. Wrong keys are counted by address. A right key is accepted however often its address has failed.
        """
        if permission in self._free:
            return
        try:
            if not self._keys.is_used(permission):
                hint = " (SPARRING_ADMIN_KEY)" if permission == "admin" else ""
                message = f"This server has no key with the scope {permission}; its operator can add one{hint}."
                raise Refused(403, message, code=f"no_{permission}_key", reason=f"no key has the scope {permission}")
            now = self._clock()
            found = self._authenticate(visit, key, now)
            if permission not in found.scope:
                message = f"The key {found.name!r} has the scope {', '.join(found.scope)}, but this needs {permission}."
                raise Refused(403, message, code="insufficient_scope", reason=f"needs the scope {permission}")
            self._count(visit, found, now)
        except Refused as refused:
            visit.reason = refused.reason
            raise

    def _authenticate(self, visit: Visit, key: str, now: float) -> NamedKey:
        """Return the name and limits of a valid key. Raises Refused for other keys."""
        found = self._keys.find(key, now) if key else None
        if found is not None:
            visit.name = found.name
            if found.expires is None or now < found.expires.timestamp():
                return found
        seconds = self._failures.add(visit.address, now)
        visit.is_logged = seconds == 0
        if not key:
            raise Refused(401, "A key is required; send it as the bearer.", code="invalid_api_key", reason="no key")
        if seconds:
            message = f"This address has sent too many wrong keys; try again in {seconds} s."
            raise Refused(429, message, code="too_many_wrong_keys", reason="too many wrong keys", retry_after=seconds)
        if found is not None:
            message = f"The key {found.name!r} has expired; ask the server's operator for a new one."
            raise Refused(401, message, code="expired_api_key", reason="expired")
        message = "This is not a valid key of the server; send one that it printed, or that its operator has created."
        raise Refused(401, message, code="invalid_api_key", reason="unknown key")

    def _count(self, visit: Visit, key: NamedKey, now: float) -> None:
        """Count a request of a key. Raises Refused if it would exceed a quota."""
        if excess := self._used[key.name].find_excess(key, now):
            limit, seconds = excess
            message = f"The key {key.name!r} has reached its limit {limit}; try again in {seconds} s."
            raise Refused(429, message, code="quota_exceeded", reason=limit, retry_after=seconds)
        visit.is_counted = True

    def _end(self, visit: Visit) -> None:
        now = self._clock()
        if visit.is_counted and visit.name is not None:
            self._used[visit.name].end(visit.num_tokens, now)
        if self._audit is not None and visit.is_logged:
            self._audit.write(
                time=round(now, 3),
                server=self._server,
                name=visit.name,
                address=visit.address,
                method=visit.method,
                path=describe_path(visit.path),
                status=visit.status,
                tokens=visit.num_tokens,
                reason=visit.reason,
            )


FindKey: TypeAlias = "Callable[[Scope], str]"
Refuse: TypeAlias = "Callable[[Refused], ASGIApp]"


@final
class Gated:
    """An app behind a gate."""

    def __init__(self, app: ASGIApp, gate: Gate, needs: Permission, *, find_key: FindKey, refuse: Refuse) -> None:
        """Require a key with the permission `needs`. `find_key` returns the key of a request, or "". `refuse` returns the
        answer to a refused request."""
        self._app, self._gate, self._find_key, self._refuse = app, gate, find_key, refuse
        self._needs: Permission = needs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = scope["client"][0] if scope.get("client") else ""
        with self._gate.visit(address, scope["method"], scope["path"]) as visit:

            async def note_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    visit.status = message["status"]
                await send(message)

            app = self._app
            try:
                self._gate.admit(visit, self._find_key(scope), self._needs)
            except Refused as refused:
                app = self._refuse(refused)
            scope[_VISIT] = visit
            await app(scope, receive, note_status)


def count_tokens(scope: Scope, num_tokens: int) -> None:
    """Add tokens to those of a request, if it passed a gate."""
    if (visit := scope.get(_VISIT)) is not None:
        visit.num_tokens += num_tokens


def read_authorization(headers: Mapping[str, str]) -> str:
    """Return the key of a request: the bearer, or the password of HTTP basic authentication, which browsers ask for."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def find_page_key(scope: Scope) -> str:
    """Return the key of a request to a page."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return read_authorization(headers)


def refuse_page(refused: Refused) -> ASGIApp:
    """Return the answer to a refused request for a page. A browser then asks for a password."""

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        body = f"{refused}\n".encode()
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        if refused.status == 401:
            headers.append((b"www-authenticate", b'Basic realm="sparring", charset="UTF-8"'))
        if refused.retry_after is not None:
            headers.append((b"retry-after", str(refused.retry_after).encode()))
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer
