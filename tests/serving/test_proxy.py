"""`sparring serve` behind nginx, with the settings of docs/vllm.md."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from tests.serving.test_serve import ADMIN, ROOT, serving

PAGE = (ROOT / "docs" / "vllm.md").read_text("utf-8")
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
HOST = "model.example.com"


def documented_server(port: int, address: str, folder: Path) -> str:
    """The page's settings with this port, this address of `sparring serve`, and a certificate in this folder."""
    found = re.search(r"```nginx\n(.+?)```", PAGE, flags=re.DOTALL)
    assert found is not None
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/ssl/model.example.com": f"{folder}/{HOST}",
        "http://127.0.0.1:8000": address,
    }
    text = found[1]
    for written, used in changes.items():
        assert written in text
        text = text.replace(written, used)
    return text


@contextmanager
def proxy(address: str, folder: Path) -> Iterator[str]:
    """Run nginx before this address, and yield its own one."""
    assert NGINX is not None
    key = [f"{folder}/{HOST}.key", "-out", f"{folder}/{HOST}.pem", "-days", "1", "-subj", f"/CN={HOST}"]
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", *key]
    name = ["-addext", f"subjectAltName=DNS:{HOST}"]
    subprocess.run([*request, *name], check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\nerror_log stderr;\npid {folder}/pid;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{documented_server(port, address, folder)}}}\n"
    )
    command = [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            yield f"https://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


@pytest.mark.skipif(NGINX is None or shutil.which("openssl") is None, reason="needs nginx and openssl")
def test_a_proxy_adds_tls_and_hides_the_routes_of_operators(run: Path, tmp_path: Path) -> None:
    async def scenario() -> tuple[list[str], int, int]:
        async with serving(str(run)) as served:
            address = served["base_url"].removesuffix("/v1")
            with proxy(address, tmp_path) as url:
                trusted = ssl.create_default_context(cafile=str(tmp_path / f"{HOST}.pem"))
                extensions = {"sni_hostname": HOST}
                transport = httpx.AsyncHTTPTransport(verify=trusted, retries=20)

                async def set_name(request: httpx.Request) -> None:
                    request.headers["host"] = HOST
                    request.extensions.update(extensions)

                async with httpx.AsyncClient(
                    transport=transport, timeout=60, event_hooks={"request": [set_name]}
                ) as http:
                    await _wait_until_it_answers(http, f"{url}/health")
                    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", http_client=http)
                    stream = await client.chat.completions.create(
                        model="run",
                        messages=[{"role": "user", "content": "7?"}],
                        max_tokens=8,
                        stream=True,
                    )
                    reasons = [one.choices[0].finish_reason or "" async for one in stream if one.choices]
                    hidden = await http.get(f"{url}/v1/sparring/versions", headers=ADMIN)
                    async with httpx.AsyncClient() as direct:
                        shown = await direct.get(f"{address}/v1/sparring/versions", headers=ADMIN)
                    return reasons, hidden.status_code, shown.status_code

    reasons, hidden, shown = asyncio.run(scenario())
    assert len(reasons) > 1
    assert reasons[-1] in ("length", "stop")
    assert (hidden, shown) == (404, 200)


async def _wait_until_it_answers(client: httpx.AsyncClient, url: str) -> None:
    for _ in range(100):
        try:
            await client.get(url)
        except httpx.ConnectError:
            await asyncio.sleep(0.1)
        else:
            return
    raise AssertionError(f"no answer from {url} within 10 s")
