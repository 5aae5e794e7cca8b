"""The options that commands share about who may use their server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str, typer.Option(help="Address to listen on.")]
NoKey = Annotated[
    bool,
    typer.Option("--no-key", help="Require no key, on a loopback address; by default SPARRING_API_KEY or a new key."),
]
TLSCertificate = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificate (PEM) to serve HTTPS with; needs --tls-key.")
]
TLSKey = Annotated[Path | None, typer.Option(metavar="FILE", help="Private key (PEM) of the certificate.")]
PlainHTTP = Annotated[
    bool, typer.Option("--plain-http", help="Listen on other than loopback addresses without a certificate.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Another name of the server, as a proxy forwards it. May be repeated."),
]
KeysFile = Annotated[
    Path | None,
    typer.Option("--keys", metavar="FILE", help="Keys by name, which `sparring keys` writes."),
]
AuditFile = Annotated[
    Path | None,
    typer.Option("--audit-log", metavar="FILE", help="Append a line for each request: who, what, when; never a key."),
]
