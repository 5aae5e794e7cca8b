"""A server with S3's interface, in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "runs"


@contextmanager
def serve_s3() -> Iterator[tuple[Any, Mapping[str, str]]]:
    """Start moto's server with a bucket. Yield the server and the environment variables that lead clients to it.

    Skips the test if a library is missing.
    """
    moto_server = pytest.importorskip("moto.server", reason="needs moto[s3], flask and flask-cors")
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        files = s3fs.S3FileSystem(skip_instance_cache=True)
        if not files.exists(BUCKET):
            files.mkdir(BUCKET)
        try:
            yield server, variables
        finally:
            server.stop()
