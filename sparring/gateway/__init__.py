"""The gateway: a thin layer over sessions that provides HTTP endpoints for the policy in OpenAI's format."""

from sparring.gateway.endpoints import EpisodeEndpoints, StatelessEndpoints
from sparring.gateway.queue import WorkQueue
from sparring.gateway.server import EpisodeEndpoint, Gateway, ModelServer
from sparring.gateway.versions import Version, Versions

__all__ = [
    "EpisodeEndpoint", "EpisodeEndpoints", "Gateway", "ModelServer", "StatelessEndpoints", "Version", "Versions", "WorkQueue",
]  # fmt: skip
