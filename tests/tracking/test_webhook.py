"""Notifications arrive, or cost a warning; neither they nor the warning show a secret."""

import json
import logging

import httpx
import pytest

from sparring.tracking.webhook import PAUSES_SECONDS, Webhook, webhook_url

URL = "https://hooks.example/T0/B1-secret"
FINDING = {
    "rule": "reward.rises_alone",
    "severity": "error",
    "step": 40,
    "symptom": "The score does not follow.",
    "change": "Tighten the parser.",
    "confirm": "",
    "evidence": {"numbers": [1] * 1000},
}


class Address:
    """Answers with the statuses given, one a request, then with 200; an exception is raised instead."""

    def __init__(self, *answers: int | Exception) -> None:
        self.bodies: list[dict[str, object]] = []
        self.pauses: list[float] = []
        self._answers = list(answers)

    def webhook(self) -> Webhook:
        return Webhook(URL, run="shop-003", transport=httpx.MockTransport(self._take), sleep=self.pauses.append)

    def _take(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        answer = self._answers.pop(0) if self._answers else 200
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer)


def test_a_run_is_posted_from_start_to_end_and_notes_are_not() -> None:
    address = Address()
    webhook = address.webhook()
    webhook.log_status("running")
    webhook.log_metrics(1, {"a": 1.0})
    webhook.log_finding(FINDING)
    webhook.log_finding({**FINDING, "severity": "note"})
    webhook.log_status("failed", reason="the engine is down")
    webhook.close()
    assert [body["event"] for body in address.bodies] == ["started", "finding", "failed"]
    assert address.bodies[1]["text"] == (
        "run shop-003: error after step 40: The score does not follow. Tighten the parser."
    )
    assert "evidence" not in json.dumps(address.bodies[1])
    assert (address.bodies[2]["status"], address.bodies[2]["reason"]) == ("failed", "the engine is down")
    assert {body["run"] for body in address.bodies} == {"shop-003"}


def test_what_does_not_arrive_is_sent_again_after_longer_and_longer_pauses() -> None:
    address = Address(503, httpx.ReadTimeout("slow"))
    webhook = address.webhook()
    webhook.log_status("completed")
    webhook.close()
    assert [body["event"] for body in address.bodies] == ["finished"] * 3
    assert address.pauses == [0.0, *PAUSES_SECONDS]


@pytest.mark.parametrize(("answers", "requests"), [([500, 500, 500], 3), ([404], 1)])
def test_an_address_that_is_gone_costs_a_warning_without_the_address(
    caplog: pytest.LogCaptureFixture, answers: list[int], requests: int
) -> None:
    address = Address(*answers)
    webhook = address.webhook()
    with caplog.at_level(logging.WARNING):
        webhook.log_status("running")
        webhook.close()
    assert len(address.bodies) == requests
    assert f"the notification 'started' was not delivered (status {answers[-1]})" in caplog.text
    assert "secret" not in caplog.text


def test_secrets_in_what_is_posted_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "canary-4f1b")
    address = Address()
    webhook = address.webhook()
    webhook.log_status("failed", reason="401 for key canary-4f1b")
    webhook.close()
    assert address.bodies[0]["reason"] == "401 for key ***"


@pytest.mark.parametrize("value", [None, "", "hooks.example/T0", "ftp://x/y", "https://[secret"])
def test_a_variable_without_an_address_is_named_and_its_value_is_not(value: str | None) -> None:
    with pytest.raises(ValueError, match="TEAM_WEBHOOK") as refused:
        webhook_url("TEAM_WEBHOOK", value)
    assert not value or value not in str(refused.value)
    assert webhook_url("TEAM_WEBHOOK", URL) == URL
