"""Adapters that make environments of other libraries and servers available. Each module needs the library that it
adapts."""

from sparring.environments.adapters.adapter import Adapter, opening_with
from sparring.environments.returns import episode_return

__all__ = ["Adapter", "episode_return", "opening_with"]
