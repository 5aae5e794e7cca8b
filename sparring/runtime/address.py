"""Addresses of sockets, written as HOST:PORT."""

from __future__ import annotations

import ipaddress
import platform
import re
from typing import NamedTuple

from sparring.errors import UsageError


class Address(NamedTuple):
    """A host and a port. The host may be a name, an IPv4 address, or an IPv6 address (in brackets when written)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def reachable(self) -> Address:
        """Return the address by which other machines reach a process here that listens on this one."""
        return Address(platform.node(), self.port) if self.host in ("0.0.0.0", "::") else self

    @property
    def is_loopback(self) -> bool:
        """Whether only processes on this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def read_address(text: str) -> Address:
    """Return the address that is written as HOST:PORT. Raises UsageError for any other text."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise UsageError(f"{text!r} is not an address; write HOST:PORT, such as 0.0.0.0:7700 or [::1]:7700.")
    return Address(match[1] or match[2], int(match[3]))
