"""The policy's front door over HTTP, in OpenAI's words: a skin over sessions."""

from sparring.gateway.doors import EpisodeDoors, StatelessDoors
from sparring.gateway.queue import WorkQueue
from sparring.gateway.server import Door, Gateway, ModelServer

__all__ = ["Door", "EpisodeDoors", "Gateway", "ModelServer", "StatelessDoors", "WorkQueue"]
