"""Web pages cannot use a server on a loopback address: neither by their own name nor by one that resolves to it."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from sparring.errors import UsageError
from sparring.web.certificate import Certificate
from sparring.web.hosts import HostCheck, find_host_names
from sparring.web.listener import Listener


async def hello(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def ask(headers: dict[str, str], *, host: str = "127.0.0.1", allowed: tuple[str, ...] = ()) -> httpx.Response:
    app = HostCheck(hello, find_host_names(host, allowed))

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000") as client:
            return await client.get("/", headers=headers)

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["127.0.0.1", "127.0.0.1:8000", "localhost:9", "LOCALHOST", "[::1]:8000", "[::1]"])
def test_the_names_of_loopback_addresses_are_known(name: str) -> None:
    assert ask({"host": name}).status_code == 200


@pytest.mark.parametrize(
    "name", ["attacker.example", "attacker.example:8000", "127.0.0.1.attacker.example", "10.0.0.1", ""]
)
def test_a_foreign_name_that_resolves_to_this_machine_is_refused(name: str) -> None:
    answer = ask({"host": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host")


def test_a_name_may_be_allowed_for_a_proxy() -> None:
    assert ask({"host": "model.example.com"}, allowed=("Model.example.com",)).status_code == 200
    assert ask({"host": "localhost"}, allowed=("model.example.com",)).status_code == 200
    assert ask({"host": "other.example.com"}, allowed=("model.example.com",)).status_code == 421


def test_a_server_on_another_address_may_have_any_name() -> None:
    assert ask({"host": "trainer.cluster.local:7000"}, host="0.0.0.0").status_code == 200
    assert ask({"host": "other"}, host="0.0.0.0", allowed=("trainer",)).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(
    "origin", ["https://attacker.example", "null", "http://127.0.0.1:9000", "http://localhost:8000"]
)
def test_a_page_of_another_origin_is_refused(origin: str, host: str) -> None:
    answer = ask({"host": "127.0.0.1:8000", "origin": origin}, host=host)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_origin")


def test_a_page_of_the_server_itself_may_ask() -> None:
    assert ask({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}).status_code == 200


def test_two_names_are_refused() -> None:
    async def run() -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope: Any = {"type": "http", "headers": [(b"host", b"localhost"), (b"host", b"attacker.example")]}
        await HostCheck(hello, find_host_names("127.0.0.1", ()))(scope, None, send)  # type: ignore[arg-type]
        return sent[0]["status"]

    assert asyncio.run(run()) == 421


def make_certificate(folder: Path) -> Certificate:
    certificate, key = folder / "server.pem", folder / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    command += ["-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return Certificate(certificate, key)


def test_a_server_with_a_certificate_speaks_https_only(tmp_path: Path) -> None:
    tls = make_certificate(tmp_path)

    async def run() -> None:
        listener = Listener(hello, "127.0.0.1", 0, tls=tls)
        await listener.start()
        try:
            assert listener.base_url.startswith("https://127.0.0.1:")
            trusted = ssl.create_default_context(cafile=str(tls.certificate))
            async with httpx.AsyncClient(verify=trusted) as client:
                assert (await client.get(listener.address)).text == "hello"
                with pytest.raises(httpx.HTTPError):
                    await client.get(listener.address.replace("https", "http"))
        finally:
            await listener.stop()

    asyncio.run(run())


def test_a_certificate_that_cannot_be_loaded_is_refused_before_the_server_starts(tmp_path: Path) -> None:
    tls, other = make_certificate(tmp_path), tmp_path / "other.key"
    other.write_text("no key")
    with pytest.raises(UsageError, match="PEM files"):
        Certificate(tls.certificate, other).check()
    with pytest.raises(UsageError, match="PEM files"):
        Certificate(tmp_path / "missing.pem", tls.key).check()
    subprocess.run(
        ["openssl", "rsa", "-in", str(tls.key), "-aes128", "-passout", "pass:word", "-out", str(other)],
        check=True,
        capture_output=True,
    )
    with pytest.raises(UsageError, match="without a password"):
        Certificate(tls.certificate, other).check()
