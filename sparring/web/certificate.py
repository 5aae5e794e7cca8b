"""TLS certificates of servers."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from sparring.errors import UsageError


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a server's TLS certificate."""

    certificate: Path
    """PEM file with the certificate and those of the authorities that signed it."""
    key: Path
    """PEM file with the private key, without a password."""

    def check(self) -> None:
        """Raises UsageError if the files cannot be loaded."""
        try:
            # With a password of its own, a protected key is refused instead of asked for on the terminal.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.certificate} and {self.key} cannot be loaded: {error}. Give PEM files of a certificate and its key "
                "without a password."
            ) from error
