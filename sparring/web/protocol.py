"""The HTTP protocol of the servers. Its limits and deadlines apply to every connection, also to one without a key.

uvicorn's own protocol waits without a deadline for headers and bodies, and reads headers without a limit. As one client
could then occupy a server's memory and connections, each connection here has

- MOST_HEADER_BYTES for the request line and the headers, and for what is not content in a body in chunks;
- HEADER_SECONDS until the headers are complete, BODY_SECONDS without a byte of the body, and WRITE_SECONDS in which the
  client reads nothing of an answer;
- a place among the connections of its server (`Places`).
"""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any, final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from sparring.runtime.address import Address

MOST_HEADER_BYTES = 64 * 1024
MOST_HEADERS = 200
HEADER_SECONDS = 30.0
BODY_SECONDS = 30.0
WRITE_SECONDS = 60.0
LINGER_SECONDS = 2.0
"""Time in which the rest of a body is discarded after a request was answered. A connection that is closed at once may
lose the answer."""
MOST_CONNECTIONS = 4096
_TOO_LARGE = f"The request has more than {MOST_HEADERS} headers, or they are larger than {MOST_HEADER_BYTES} bytes."
_SPARE_FILES = 256
"""The open files that a process needs for other things than connections of clients."""


def find_most_connections(wanted: int = MOST_CONNECTIONS) -> int:
    """Return how many connections a server of this process may have: as many as wanted, or fewer if the process may not
    open so many files. Its soft limit of open files is raised for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return min(wanted, max(soft - _SPARE_FILES, soft // 2))
    return wanted


@final
class Places:
    """The connections of one server. If there are too many, those that wait for a request give way to new ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[BoundedProtocol, None] = {}
        """The connections without a complete request, from the oldest to the newest."""
        self._idle: dict[BoundedProtocol, None] = {}
        """The connections between two requests."""
        self._num = 0
        self._num_by_address: Counter[str] = Counter()

    def enter(self, connection: BoundedProtocol, address: str) -> bool:
        """Take a place for a new connection, and return whether there is one. The connection that has waited longest for
        its first request is closed if there are too many, or else the one that has been idle for longest. One address
        other than this machine gets half of the places."""
        if not Address(address, 0).is_loopback and self._num_by_address[address] >= self._most // 2:
            return False
        if self._num >= self._most and not self._make_room():
            return False
        self._num += 1
        self._num_by_address[address] += 1
        self._waiting[connection] = None
        return True

    def leave(self, connection: BoundedProtocol, address: str) -> None:
        """Give up the place of a connection that was closed."""
        self.note_request(connection)
        self._num -= 1
        self._num_by_address[address] -= 1
        if not self._num_by_address[address]:
            del self._num_by_address[address]

    def note_request(self, connection: BoundedProtocol) -> None:
        """Note that a connection has a request in progress, so it keeps its place."""
        self._waiting.pop(connection, None)
        self._idle.pop(connection, None)

    def note_answer(self, connection: BoundedProtocol) -> None:
        """Note that the request of a connection has been answered."""
        self._idle[connection] = None

    def _make_room(self) -> bool:
        for connections in (self._waiting, self._idle):
            if connections:
                oldest = next(iter(connections))
                del connections[oldest]
                oldest.transport.abort()
                return True
        return False


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits on headers, deadlines for both directions, and a limited number of connections."""

    def __init__(self, *arguments: Any, places: Places, **options: Any) -> None:
        """Create the protocol of one connection, which takes one of the `places`."""
        super().__init__(*arguments, **options)
        self._places = places
        self._has_place = self._is_refused = False
        self._address = ""
        self._overhead = 0
        """The number of bytes that were read since the last headers and are not part of a body."""
        self._deadline: asyncio.TimerHandle | None = None
        self._last_read = 0.0
        self._write_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._has_place = self._places.enter(self, self._address)
        if self._has_place:
            self._expect(HEADER_SECONDS, self._end_headers)
        else:
            self._refuse(503, "The server has too many connections; try again later, or use fewer connections.")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # asyncio's transport refers to itself by this method, so that it would wait for a garbage collection.
        vars(self.transport).pop("_read_ready_cb", None)
        # After a reset connection, uvicorn would keep everything until its keep-alive timer ends.
        self._unset_keepalive_if_required()
        self._cancel_deadline()
        self.resume_writing()
        if self._has_place:
            self._has_place = False
            self._places.leave(self, self._address)

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        if self._deadline is None and self._is_between_requests:
            self._expect(HEADER_SECONDS, self._end_headers)
        self._last_read = self.loop.time()
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > MOST_HEADER_BYTES and not self._is_ending:
            self._refuse(431, _TOO_LARGE)

    @property
    def _is_ending(self) -> bool:
        return self._is_refused or self.transport.is_closing()

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)

    def on_headers_complete(self) -> None:
        self._overhead = 0
        if self._is_ending:
            return
        self._cancel_deadline()
        num_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.headers) > MOST_HEADERS or num_bytes > MOST_HEADER_BYTES:
            self._refuse(431, _TOO_LARGE)
            return
        self._places.note_request(self)
        super().on_headers_complete()
        self._expect(BODY_SECONDS, self._end_body)

    def on_body(self, body: bytes) -> None:
        self._overhead -= len(body)
        if not self._is_ending:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._overhead = 0
        if self._is_ending:
            return
        self._cancel_deadline()
        if self.cycle.response_complete:
            self.cycle.more_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self.cycle.response_complete:
            self._places.note_answer(self)
            if self.cycle.more_body:
                self._expect(LINGER_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _expect(self, seconds: float, then: Callable[[], None]) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, then)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_headers(self) -> None:
        self._refuse(408, f"The headers were not complete within {HEADER_SECONDS:g} s.")

    def _end_body(self) -> None:
        """Close the connection, unless it has sent something lately, or is not read because the server is busy."""
        silent = self.loop.time() - self._last_read
        if silent >= BODY_SECONDS and not self.flow.read_paused:
            self._refuse(408, f"The body was not complete, and nothing of it came for {BODY_SECONDS:g} s.")
        else:
            self._expect(max(BODY_SECONDS - silent, 1.0), self._end_body)

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close the connection. If an answer was begun, the connection is closed without another one."""
        self._cancel_deadline()
        if self._is_ending:
            return
        self._is_refused = True
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if is_answering and self.cycle.response_started:
            self.transport.abort()
            return
        body = json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": None}}).encode()
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
        self.transport.write(STATUS_LINE[status] + head + body)
        if self.transport.can_write_eof():
            # What still comes is discarded for a while. If it were not read, the client might not get the answer.
            self.transport.write_eof()
            self._expect(LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()
