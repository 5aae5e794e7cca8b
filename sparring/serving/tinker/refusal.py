"""The answer to a request that cannot be computed."""

from __future__ import annotations


class Refusal(Exception):
    """A request is refused. Nothing has changed."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
