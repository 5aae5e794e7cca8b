"""A server is used by those who have its key, and is never open to other machines by mistake."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.errors import UsageError
from sparring.gateway.app import create_app
from sparring.serving.access import KEY_VARIABLE, Access, choose_access, find_part_key, read_certificate
from sparring.serving.record import Recording
from tests.web.test_hosts import make_certificate


def test_a_server_gets_a_new_key_unless_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    first, second = choose_access("127.0.0.1", 0), choose_access("127.0.0.1", 0)
    assert first.is_new_key
    assert first.api_key is not None
    assert len(first.api_key) > 40
    assert first.api_key != second.api_key
    assert choose_access("localhost", 0, has_key=False).api_key is None
    monkeypatch.setenv(KEY_VARIABLE, "mine")
    assert (choose_access("::1", 0).api_key, choose_access("::1", 0).is_new_key) == ("mine", False)
    with pytest.raises(UsageError, match="remove one of them"):
        choose_access("127.0.0.1", 0, has_key=False)


def test_other_machines_need_a_key_and_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(UsageError, match="remove --no-key"):
        choose_access("0.0.0.0", 0, has_key=False)
    with pytest.raises(UsageError, match=r"--tls-certificate FILE --tls-key FILE.*--plain-http"):
        choose_access("0.0.0.0", 0)
    assert choose_access("0.0.0.0", 0, is_plain_allowed=True).api_key
    tls = make_certificate(tmp_path)
    assert choose_access("10.0.0.5", 0, tls=read_certificate(tls.certificate, tls.key)).tls == tls
    with pytest.raises(UsageError, match="SPARRING_API_KEY is not set"):
        find_part_key("0.0.0.0")
    assert find_part_key("127.0.0.1") is None
    monkeypatch.setenv(KEY_VARIABLE, "short")
    for refused in (lambda: find_part_key("0.0.0.0"), lambda: choose_access("0.0.0.0", 0, is_plain_allowed=True)):
        with pytest.raises(UsageError, match="at least 16"):
            refused()


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    assert read_certificate(None, None) is None
    with pytest.raises(UsageError, match="--tls-key FILE"):
        read_certificate(tmp_path / "a.pem", None)
    with pytest.raises(UsageError, match="--tls-certificate FILE"):
        read_certificate(None, tmp_path / "a.key")


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("serve", "smollm2-135m-instruct", "--host", "0.0.0.0"), "--plain-http"),
        (("serve", "smollm2-135m-instruct", "--host", "0.0.0.0", "--no-key"), "--no-key"),
        (("record", "--upstream", "http://127.0.0.1:1/v1", "--model", "m", "--host", "0.0.0.0"), "--plain-http"),
        (("engine", "recipes/pointer_chase", "--host", "0.0.0.0"), KEY_VARIABLE),
        (("learner", "recipes/pointer_chase", "--host", "0.0.0.0"), KEY_VARIABLE),
    ],
)
def test_a_command_refuses_before_it_loads_a_model(
    command: tuple[str, ...], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert what in refused.output


def test_a_recording_requires_its_key_and_names_episodes_in_the_path(tmp_path: Path) -> None:
    async def run() -> list[int]:
        engine = ScriptedMessages(["hello", "again"], name="expert")
        async with Recording(tmp_path / "out", engine, model="expert") as recording:
            access = Access(api_key="right")
            listener = access.listen(create_app(recording, gate=access.open_gate("record")))
            await listener.start()
            try:
                async with httpx.AsyncClient() as client:
                    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                    return [
                        (
                            await client.post(
                                f"{listener.address}{path}/v1/chat/completions",
                                json=body,
                                headers={"authorization": f"Bearer {key}"},
                            )
                        ).status_code
                        for path, key in [("", "wrong"), ("/s/right", "wrong"), ("/s/tour", "right"), ("", "right")]
                    ]
            finally:
                await listener.stop()

    assert asyncio.run(run()) == [401, 401, 200, 200]
