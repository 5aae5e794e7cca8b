"""What no client of Sparring sends to the server of an engine or a learner is refused with a clear message, and is not logged as
an error of the server."""

from __future__ import annotations

import gc
import json
import logging
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings

from sparring.chat import ByteTokenizer
from sparring.engines import bodies
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.server import engine_app
from sparring.training.server import learner_app
from tests.contracts import cases
from tests.gateway.builders import raw, replaced

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 8}
SAMPLE = {
    "request": {
        "session_id": "s", "prompt_ids": [1, 2], "sampling": SAMPLING, "stop_ids": [3], "seed": 1, "stop_texts": [], "order": [],
        "deadline": None, "constraint": None, "top_k": None,
    },
    "policy": None, "seconds": 5.0, "stream": True,
}  # fmt: skip


def app() -> Any:
    return engine_app(ScriptedEngine(lambda _: "yes", encode=ByteTokenizer().encode))


def post(content: bytes | str, path: str = "/v1/sample", **headers: str) -> httpx.Response:
    content = content if isinstance(content, bytes) else content.encode()
    return raw(app(), "POST", path, content=content, headers=headers)


def sample(**changes: Any) -> str:
    """Return a body with other values, by path: `request__seed=1`."""
    body = json.loads(json.dumps(SAMPLE))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = body
        for parent in parents:
            place = place[parent]
        place[last] = value
    return json.dumps(body)


def message(answer: httpx.Response) -> str:
    return answer.json()["error"]["message"]


def test_a_proper_request_is_answered() -> None:
    answer = post(sample())
    assert answer.status_code == 200
    assert "completion" in json.loads(answer.text.strip().splitlines()[-1])


BAD = {
    "empty": ("", "not valid JSON"),
    "no JSON": ("{", "not valid JSON"),
    "not UTF-8": (b'{"policy": "\xff"}', "not valid JSON"),
    "UTF-16": (json.dumps(SAMPLE).encode("utf-16"), "not valid JSON"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "NaN": (sample(seconds=float("nan")), "NaN is not a number"),
    "infinite": (sample().replace("5.0", "1e999"), "seconds is inf"),
    "many digits": (sample().replace("5.0", "9" * 5000), "not valid JSON"),
    "a list": ("[]", r"The body is \[\]"),
    "null": ("null", "The body is null"),
    "no fields": ("{}", "request: Field required"),
    "no stream": (json.dumps({**SAMPLE, "stream": "perhaps"}), "stream"),
    "seconds": (sample(seconds="soon"), "seconds"),
    "policy": (sample(policy=[1]), "policy"),
    "request": (sample(request=7), "request"),
    "prompt": (sample(request__prompt_ids="abc"), "prompt_ids"),
    "no prompt": (sample(request__prompt_ids=[]), "no ids"),
    "a huge id": (sample(request__prompt_ids=[10**30]), "prompt_ids has an id"),
    "a negative id": (sample(request__prompt_ids=[-1]), "prompt_ids has an id"),
    "temperature": (sample(request__sampling={**SAMPLING, "temperature": "nan"}), "temperature is nan"),
    "negative temperature": (sample(request__sampling={**SAMPLING, "temperature": -1}), "temperature is -1"),
    "top_p": (sample(request__sampling={**SAMPLING, "top_p": 0}), "top_p is 0"),
    "max_tokens": (sample(request__sampling={**SAMPLING, "max_tokens": 0}), "max_tokens is not"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_body_is_refused_with_its_reason_and_not_logged(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    body, reason = BAD[name]
    with caplog.at_level(logging.WARNING):
        answer = post(body)
    assert answer.status_code == 400
    assert answer.json()["error"]["kind"] == "DataError"
    assert caplog.records == []
    assert re.search(reason, message(answer)), message(answer)
    assert len(message(answer)) < 500


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_refused(content_type: str) -> None:
    answer = post(sample(), **{"content-type": content_type})
    assert answer.status_code == 415
    assert "send application/json" in message(answer)


def test_a_body_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MOST_BYTES", 1000)
    assert post(sample()).status_code == 200
    answer = post(sample(policy="x" * 1000))
    assert answer.status_code == 413
    assert "larger than 1000 bytes" in message(answer)


@settings(max_examples=200, deadline=None)
@given(body=replaced(SAMPLE))
def test_no_body_is_an_error_of_the_server(body: Any) -> None:
    answer = post(json.dumps(body))
    # A frozen policy that the server does not know is a ServiceError.
    assert answer.status_code in (200, 400, 422), answer.text
    if answer.status_code == 422:
        assert answer.json()["error"]["kind"] == "ServiceError"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/logprobs", {}),
        ("/v1/logprobs", {"token_ids": [1, -1], "temperature": 1.0, "policy": None}),
        ("/v1/logprobs", {"token_ids": [1, 2], "temperature": -1.0, "policy": None}),
        ("/v1/logprobs", {"token_ids": [1, 2], "temperature": 1.0, "policy": None, "first": -5}),
        ("/v1/sessions", {}),
        ("/v1/sessions", {"sessions": [1]}),
        ("/v1/sessions", {"sessions": [["a", "perhaps"]]}),
        ("/v1/weights", {}),
        ("/v1/weights?version=one&fingerprint=a", {}),
        ("/v1/weights?version=1", {}),
    ],
)
def test_the_other_routes_refuse_likewise(path: str, body: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        answer = post(json.dumps(body), path)
    assert answer.status_code == 400
    assert answer.json()["error"]["kind"] == "DataError"
    assert caplog.records == []


def test_a_learner_refuses_likewise_and_deletes_only_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "of another program").mkdir()
    learner = learner_app(cases.torch_learner())
    with caplog.at_level(logging.WARNING):
        for content in (b"", b"{}", b"[]", b'{"instance": 1}'):
            assert raw(learner, "POST", "/v1/jobs/a", content=content).status_code == 400
        assert raw(learner, "GET", "/v1/jobs/a?seconds=").status_code == 422  # no such job
    assert caplog.records == []
    instance = raw(learner, "GET", "/v1/learner").json()["instance"]
    body = {"instance": instance, "verb": "reset_optimizer", "arguments": {}, "unused": ["..", "", "x/..", "/"]}

    assert raw(learner, "POST", "/v1/jobs/a", json=body).status_code == 200
    with warnings.catch_warnings(action="ignore"):
        del learner
        gc.collect()  # a learner's folder is deleted with it, with a warning
    assert (tmp_path / "of another program").is_dir()
