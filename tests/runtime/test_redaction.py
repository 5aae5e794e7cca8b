"""Values of environment variables that are named as secrets never show; other text stays as it is."""

import json
from urllib.parse import quote

import pytest

from sparring.runtime.redaction import mask_secrets, register


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MY_SECRET", "slack_webhook"]
)
def test_the_value_of_a_variable_named_so_is_masked(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "canary-4f1b")
    assert mask_secrets("Bearer canary-4f1b, twice: canary-4f1b") == "Bearer ***, twice: ***"


def test_it_is_found_as_it_stands_in_addresses_and_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = 'pä/ss"wo\\rd'
    monkeypatch.setenv("DB_PASSWORD", secret)
    assert mask_secrets(f"https://me:{quote(secret, safe='')}@host") == "https://me:***@host"
    assert json.loads(mask_secrets(json.dumps({"a": secret}))) == {"a": "***"}
    assert json.loads(mask_secrets(json.dumps({"a": secret}, ensure_ascii=False))) == {"a": "***"}


def test_of_two_secrets_the_longer_is_masked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abcdefgh")
    monkeypatch.setenv("B_TOKEN", "abcdefgh-ijkl")
    assert mask_secrets("abcdefgh-ijkl abcdefgh") == "*** ***"


def test_short_values_and_other_variables_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "true")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM_X", "canary-4f1b")
    assert mask_secrets("true canary-4f1b") == "true canary-4f1b"


def test_a_variable_that_was_registered_counts_whatever_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE_TO_TELL", "https://hooks.example/T0/B1")
    register("WHERE_TO_TELL")
    assert mask_secrets("POST https://hooks.example/T0/B1 failed") == "POST *** failed"
