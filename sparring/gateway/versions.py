"""The versions of a served policy: which of them answers a request, and how an operator changes this while the server
runs."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias, final

import pydantic

from sparring.errors import ServiceError, SparringError, UsageError
from sparring.gateway.dialects.validation import Strict
from sparring.gateway.request import ApiError
from sparring.protocols import Engine
from sparring.types import Json

VERSIONS = "/v1/sparring/versions"
"""The route through which an operator changes the versions."""
DEFAULT_NAMES = ("default", "policy")
"""The names of the policy that every server accepts. Agents use them in training, where no policy has another name."""

Name: TypeAlias = Annotated[str, pydantic.Field(min_length=1, max_length=1000)]
Share: TypeAlias = Annotated[pydantic.FiniteFloat, pydantic.Field(ge=0, le=1)]


class VersionChange(Strict):
    """The body of a request that changes which versions answer. An absent field changes nothing."""

    default: Name | None = None
    """The version that answers the conversations which no canary answers."""
    canary: dict[Name, Share] | None = None
    """The shares of the conversations that other versions answer. An empty object ends all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A version of the policy, such as `shop-001@20`, and the engine that samples with its weights."""

    name: str
    engine: Engine


LoadVersion: TypeAlias = Callable[[str], Awaitable[Version]]
"""Returns the version with a name. Raises SparringError if there is none, or if it cannot be served."""


@final
class Versions:
    """The versions of one policy that are served.

    A request for a version's own name always gets this version. A request for the policy's name gets the default
    version, except for the share of the conversations that a canary answers. The share is chosen by a hash of the
    conversation, so all turns of a conversation get the same version until an operator changes the shares.
    """

    def __init__(
        self,
        versions: Sequence[Version],
        *,
        name: str | None = None,
        canary: Mapping[str, float] | None = None,
        load: LoadVersion | None = None,
    ) -> None:
        """Serve the first of `versions` by default. `name` is the policy's name, by default that of the first version.
        `canary` maps names of versions to shares.

        `load` loads further versions on request of an operator. Raises UsageError if the shares together exceed 1.
        """
        self.name = versions[0].name if name is None else name
        self._versions = {one.name: one for one in versions}
        self._default = versions[0]
        self._canary = {self._versions[other]: share for other, share in (canary or {}).items()}
        _check_shares(self._canary.values())
        self._load = load
        self._num_requests: Counter[str] = Counter()
        self._changing = asyncio.Lock()

    @property
    def names(self) -> list[str]:
        """The names that requests may send: the policy's, and those of its versions."""
        return list(dict.fromkeys([self.name, *self._versions]))

    def choose(self, model: str, conversation: Callable[[], str]) -> Version:
        """Return the version that answers a request, and count the request.

        `conversation` returns the text that identifies the conversation. Raises ApiError 404 for an unknown name.
        """
        if model in self._versions:
            chosen = self._versions[model]
        elif model in (self.name, *DEFAULT_NAMES):
            chosen = self._choose_by_share(conversation) if self._canary else self._default
        else:
            others = [one for one in self._versions if one != self.name]
            more = f" A version is one of {', '.join(others)}." if others else ""
            raise ApiError(
                404,
                f"Model {model[:80]!r} is not served here; send model={self.name!r} or one of "
                f"{', '.join(map(repr, DEFAULT_NAMES))}.{more}",
                code="model_not_found",
                param="model",
            )
        self._num_requests[chosen.name] += 1
        return chosen

    def _choose_by_share(self, conversation: Callable[[], str]) -> Version:
        digest = hashlib.blake2b(conversation().encode(), digest_size=8).digest()
        place = int.from_bytes(digest) / 2**64
        for version, share in self._canary.items():
            if place < share:
                return version
            place -= share
        return self._default

    async def change(self, change: VersionChange) -> None:
        """Load the versions that the change names, if they are not served yet, and then use all of it at once.

        Requests in progress keep their version. Raises ApiError; nothing is changed then.
        """
        async with self._changing:
            try:
                default = self._default if change.default is None else await self._find(change.default)
                canary = self._canary
                if change.canary is not None:
                    _check_shares(change.canary.values())
                    canary = {await self._find(name): share for name, share in change.canary.items()}
            except SparringError as error:
                status = 502 if isinstance(error, ServiceError) else 400
                raise ApiError(status, str(error), code="version_not_served") from error
            self._versions |= {one.name: one for one in (default, *canary)}
            self._default, self._canary = default, canary

    async def _find(self, name: str) -> Version:
        if name in self._versions:
            return self._versions[name]
        if self._load is None:
            raise UsageError(f"{name[:80]!r} is not served here; only a run has several versions.")
        return await self._load(name)

    def as_json(self) -> Json:
        """Return the names of the default version and of the canaries, with their shares, and how many requests each
        version got."""
        return {
            "default": self._default.name,
            "canary": {one.name: share for one, share in self._canary.items()},
            "num_requests": {name: self._num_requests[name] for name in self._versions},
        }


def _check_shares(shares: Iterable[float]) -> None:
    if (total := math.fsum(shares)) > 1:
        raise UsageError(f"the canaries together get {total:g} of the conversations; their shares may be at most 1.")
