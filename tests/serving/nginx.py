"""Runs nginx with the settings that a page of the documentation has."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def run_nginx(page: str, folder: Path, host: str, changes: Mapping[str, str]) -> Iterator[str]:
    """Run nginx with the settings in a page, and yield its address. `changes` replaces texts of the settings, each of
    which must be there. The port and the certificate of `host` are replaced, too."""
    assert NGINX is not None
    key = [f"{folder}/{host}.key", "-out", f"{folder}/{host}.pem", "-days", "1", "-subj", f"/CN={host}"]
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", *key]
    subprocess.run([*request, "-addext", f"subjectAltName=DNS:{host}"], check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = {"listen 443 ssl": f"listen 127.0.0.1:{port} ssl", f"/etc/ssl/{host}": f"{folder}/{host}"}
    server = _documented_server(page, {**here, **changes})
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # Started by root, nginx would serve as another user, who cannot read this folder.
    user = f"user {getpass.getuser()};\n" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user}daemon off;\nerror_log stderr;\npid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{server}}}\n"
    )
    command = [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            yield f"https://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def _documented_server(page: str, changes: Mapping[str, str]) -> str:
    found = re.search(r"```nginx\n(.+?)```", page, flags=re.DOTALL)
    assert found is not None
    text = found[1]
    for written, used in changes.items():
        assert written in text
        text = text.replace(written, used)
    return text


async def wait_until_it_answers(client: httpx.AsyncClient, url: str) -> None:
    for _ in range(100):
        try:
            await client.get(url)
        except httpx.ConnectError:
            await asyncio.sleep(0.1)
        else:
            return
    raise AssertionError(f"no answer from {url} within 10 s")
