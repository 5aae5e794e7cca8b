"""The HTTP endpoint of an episode, as agents see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class EndpointLike(Protocol):
    """The endpoint for one episode's requests (`sparring.gateway.EpisodeEndpoint`). Any OpenAI client can use its URL
    and key."""

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI clients."""
        ...

    @property
    def api_key(self) -> str:
        """The API key, which identifies the episode."""
        ...

    @property
    def policies(self) -> Mapping[str, EndpointLike]:
        """The endpoints of the episode's other policies, keyed by name."""
        ...
