"""Reads the requests to servers of engines and learners. What no client of Sparring sends is refused, and is not an error of the
server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, final

from starlette.requests import Request

from sparring.errors import DataError
from sparring.runtime.json_values import parse_json
from sparring.runtime.remote import from_json
from sparring.types import SampleRequest, Sampling

MOST_BYTES = 32 * 2**20
"""The maximum size of a request to an engine. A prompt of a million tokens has 7 MiB."""
_MEDIA_TYPE = "application/json"
_MOST_ID = 2**31 - 1

Body = TypeVar("Body")


@final
class BadRequest(DataError):
    """A request that is refused with a status of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBody:
    """The body of `/v1/sample`."""

    request: SampleRequest
    policy: str | None
    seconds: float | None
    """The time until the deadline."""
    stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsBody:
    """The body of `/v1/logprobs`."""

    token_ids: tuple[int, ...]
    temperature: float
    policy: str | None
    first: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsBody:
    """The body of `/v1/sessions`: ids of sessions, and whether they open."""

    sessions: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBody:
    """The body of `/v1/jobs/{job}`."""

    instance: str
    verb: str
    arguments: dict[str, Any]
    unused: tuple[str, ...]


async def read_sample(request: Request) -> SampleBody:
    """Raises BadRequest for anything that an engine cannot sample, except for what depends on its model."""
    body = await read_json(request, SampleBody)
    _check_ids(body.request.prompt_ids, "prompt_ids")
    _check_sampling(body.request.sampling)
    if body.seconds is not None and not math.isfinite(body.seconds):
        _refuse(f"seconds is {body.seconds}; send a finite number, or null for no deadline.")
    return body


async def read_logprobs(request: Request) -> LogprobsBody:
    """Raises BadRequest."""
    body = await read_json(request, LogprobsBody)
    if body.token_ids:
        _check_ids(body.token_ids, "token_ids")
    _check_sampling(Sampling(temperature=body.temperature))
    if body.first < 1:
        _refuse(f"first is {body.first}; the first token has no log-probability, so send at least 1.")
    return body


async def read_job(request: Request) -> JobBody:
    """Return the body of a computation, which may have a large batch, with any content type. Raises BadRequest 400."""
    return _read(await request.body(), JobBody, has_infinities=True)


async def read_json(request: Request, kind: type[Body]) -> Body:
    """Return the body of a request. Raises BadRequest 415 for another content type, 413 for more than `MOST_BYTES`, and 400 if
    the body is not JSON of this kind."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _MEDIA_TYPE:
        raise BadRequest(415, f"content-type: {media_type[:80]!r} is not supported; send {_MEDIA_TYPE}.")
    body = bytearray()
    async for part in request.stream():
        body.extend(part)
        if len(body) > MOST_BYTES:
            raise BadRequest(413, f"The body is larger than {MOST_BYTES} bytes; send a shorter prompt.")
    return _read(body, kind)


def _read(body: bytes | bytearray, kind: type[Body], *, has_infinities: bool = False) -> Body:
    """Return a body. `has_infinities` admits NaN and infinities, which log-probabilities may be."""
    try:
        value = parse_json(body.decode(), **({} if has_infinities else {"parse_constant": _refuse_constant}))
    except ValueError as error:
        raise BadRequest(400, f"The body is not valid JSON: {error}.") from error
    if not isinstance(value, Mapping):
        _refuse(f"The body is {json.dumps(value)[:80]}; send a JSON object.")
    try:
        return from_json(kind, value)
    except DataError as error:
        raise BadRequest(400, str(error)) from error


def read_number(request: Request, name: str) -> float:
    """Return a number of the query. Raises BadRequest 400."""
    text = request.query_params.get(name, "")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        _refuse(f"{name} in the query is {text[:80]!r}; send a number.")
    return number


def _check_ids(ids: tuple[int, ...], name: str) -> None:
    if not ids or min(ids) < 0 or max(ids) > _MOST_ID:
        _refuse(
            f"{name} has {'an id that is not between 0 and 2**31 - 1' if ids else 'no ids'}; send the ids of tokens."
        )


def _check_sampling(sampling: Sampling) -> None:
    if not 0 <= sampling.temperature < math.inf:
        _refuse(f"temperature is {sampling.temperature}; send a finite number from 0.")
    if not 0 < sampling.top_p <= 1:
        _refuse(f"top_p is {sampling.top_p}; send a number above 0 and at most 1.")
    if not 1 <= sampling.max_tokens <= _MOST_ID:
        _refuse("max_tokens is not between 1 and 2**31 - 1; send the most tokens that a turn may have.")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _refuse(message: str) -> NoReturn:
    raise BadRequest(400, message)
