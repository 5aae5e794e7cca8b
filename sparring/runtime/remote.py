"""Code that clients and servers of remote engines and learners share: values and errors as JSON, and responses."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from sparring import errors
from sparring.errors import ConstraintError, DataError, ServiceError, SparringError, cut
from sparring.types import Json

Value = TypeVar("Value")

PROTOCOL: Final = 1
"""The version of the routes. Client and server must have the same version."""
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 30.0
"""The longest time that a server may be silent while it works on a request. Servers send keep-alive data far more
often."""
SIGN_OF_LIFE_SECONDS = 5.0

NO_ANSWER: Final = "does not answer"
"""The words of the error for a server that cannot be reached."""

_PASSED_ON = (
    "ConstraintError", "ContextOverflow", "DataError", "InfrastructureError", "PolicyTimeout", "ServiceError",
    "UsageError",
)  # fmt: skip
"""The errors that a client raises with the same type as the server."""


@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(value: Any) -> Json:
    """Return a frozen value of `sparring.types` as a JSON value."""
    return _adapter(type(value)).dump_python(value, mode="json")


def from_json(kind: type[Value], value: Json) -> Value:
    """Return the frozen value that `to_json` wrote. Raises DataError for any other JSON value."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise DataError(
            f"a message does not contain a {kind.__name__}: {where}: {first['msg']}, but it is {cut(repr(first['input']), 80)}. "
            "Use the same version of Sparring on both sides."
        ) from error


def error_json(error: BaseException) -> dict[str, Json]:
    """Return an error as JSON."""
    kind = type(error).__name__
    schema = {"schema": error.schema} if isinstance(error, ConstraintError) else {}
    return {"kind": kind, "message": str(error) if isinstance(error, SparringError) else repr(error), **schema}


def error_from(value: Mapping[str, Json], where: str, *, otherwise: type[SparringError]) -> SparringError:
    """Return the error that a server reported. Errors that the caller cannot handle become `otherwise`."""
    kind, message = value.get("kind"), str(value.get("message"))
    if kind == "ConstraintError":
        return ConstraintError(message, schema=value.get("schema"))
    if kind in _PASSED_ON:
        return getattr(errors, str(kind))(message)
    return otherwise(f"{where} failed: {message}. See the server's log for details.")


def decode(response: httpx.Response, where: str, *, otherwise: type[SparringError]) -> Any:
    """Return the JSON of a response. Raises the error that the response reports."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code == 200 and body is not None:
        return body
    if response.status_code in (401, 403):
        raise ServiceError(f"{where} refuses the key. Use the key that the server was started with.")
    reported = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(reported, Mapping):
        reported = {"message": f"status {response.status_code}: {response.text[:300] or response.reason_phrase}"}
    raise error_from(reported, where, otherwise=otherwise)


def check_protocol(hello: Any, where: str, kind: str) -> None:
    """Raise ServiceError if a server reports a different kind or version."""
    if not isinstance(hello, Mapping) or hello.get("serves") != kind:
        raise ServiceError(f"{where} is not a {kind} of Sparring; check the address.")
    if hello.get("protocol") != PROTOCOL:
        raise ServiceError(
            f"{where} uses version {hello.get('protocol')} of the protocol, but this client uses {PROTOCOL}. Use the "
            "same version of "
            "Sparring on both sides."
        )


def headers_of(api_key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def dumps(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def unreachable(where: str, error: Exception) -> str:
    """Return the error message for a server that cannot be reached."""
    reason = f"{type(error).__name__} {error}".strip()
    return f"{where} {NO_ANSWER} ({reason})"


def needs_proxy(url: str) -> bool:
    """Return whether requests to an address may go through the environment's proxy. Those to this machine may not."""
    return httpx.URL(url).host not in ("127.0.0.1", "localhost", "::1")
