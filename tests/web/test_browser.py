"""A stranger's page in a real browser reads nothing from any server of this machine, and makes none compute or record."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import CHROMIUM, Page, browser, needs_chromium
from tests.web.victims import (
    SECRET,
    Victim,
    all_victims,
    call,
    hostile_site,
    script_of,
    served,
)

if os.environ.get("SPARRING_TEST_BROWSER") and CHROMIUM is None:
    raise RuntimeError("`make browser` needs Chromium in PATH; on Debian: apt-get install chromium")

pytestmark = needs_chromium
NAME = "attacker.example"
SECONDS = 60.0


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    # Every address of the stranger is this machine, as after DNS rebinding.
    with browser(tmp_path_factory.mktemp("browser"), f"--host-resolver-rules=MAP {NAME} 127.0.0.1") as opened:
        yield opened


@pytest.fixture
def victims(tmp_path: Path) -> Iterator[list[Victim]]:
    with all_victims(tmp_path) as running:
        yield running


def attack(page: Page, targets: list[dict[str, Any]]) -> dict[str, str]:
    """Start the attack in the page that is open, and return what it read."""
    page.evaluate(call(targets))
    deadline = time.monotonic() + SECONDS
    while (report := page.evaluate("window.report ?? null")) is None:
        assert time.monotonic() < deadline, "the attack did not end"
        time.sleep(0.05)
    return report


def list_read(report: Mapping[str, str]) -> dict[str, str]:
    return {attempt: result for attempt, result in report.items() if result.startswith("read: ")}


def assert_nothing_happened(victims: list[Victim]) -> None:
    assert {one.name: len(one.computed) for one in victims if one.computed} == {}


@pytest.mark.parametrize("site", ["127.0.0.1", NAME])
def test_a_page_of_another_origin_reads_nothing_and_starts_nothing(
    page: Page, victims: list[Victim], site: str
) -> None:
    with hostile_site() as port:
        page.visit(f"http://{site}:{port}/")
        report = attack(page, [one.describe() for one in victims])
    assert len(report) > 100
    assert list_read(report) == {}
    assert_nothing_happened(victims)
    # The requests have arrived: the servers refused them.
    assert page.statuses.count(403) > 40


def test_a_name_that_points_to_this_machine_reads_nothing_and_starts_nothing(page: Page, victims: list[Victim]) -> None:
    for one in victims:
        origin = f"http://{NAME}:{one.port}"
        page.visit(f"{origin}/")
        assert page.evaluate("location.origin") == origin
        page.evaluate(script_of())
        report = attack(page, [one.describe(origin)])
        assert list_read(report) == {}, one.name
        assert "refused: 421" in report.values()
        assert SECRET not in page.evaluate("document.documentElement.outerHTML")
    assert_nothing_happened(victims)


def test_the_same_page_reads_and_starts_everything_where_it_is_a_server_s_own(
    page: Page, victims: list[Victim]
) -> None:
    for one in victims:
        # The page of `sparring watch` has a content policy of its own; its other address has none.
        page.visit(f"{one.base}{one.reads[-1]}")
        page.evaluate(script_of())
        read = list_read(attack(page, [one.describe()]))
        assert {f"{one.name}: fetch {path}" for path in one.reads} <= set(read)
        assert any(SECRET in text for text in read.values()) or one.name in ("engine", "watch", "metrics")
    assert {one.name for one in victims if one.computed} == {"serve", "record", "gateway"}


def test_an_allowed_name_with_the_key_gets_answers_and_without_it_none(page: Page) -> None:
    with served(key="sk-the-right-key", allowed=(NAME,)) as one:
        origin = f"http://{NAME}:{one.port}"
        page.visit(f"{origin}/health")
        page.evaluate(script_of())
        report = attack(page, [{**one.describe(origin), "key": "sk-another"}])
        assert not any("/v1/" in attempt for attempt in list_read(report))
        assert report["serve: post /v1/chat/completions"] == "refused: 401"
        assert not one.computed
        page.visit(f"{origin}/health")
        page.evaluate(script_of())
        report = attack(page, [one.describe(origin)])
        assert report["serve: post /v1/chat/completions"].startswith("read: ")
        assert one.computed


def test_the_page_of_watch_obeys_its_content_policy(page: Page, victims: list[Victim]) -> None:
    (one,) = (one for one in victims if one.name == "watch")
    page.visit(f"{one.base}/")
    assert SECRET in page.evaluate("document.documentElement.outerHTML")
    assert page.complaints == []
    assert {url.removeprefix(one.base) for url in page.requests} <= {"/", "/version"}
    page.evaluate("void fetch('http://127.0.0.1:9/').catch(() => 0)")
    page.evaluate("void document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))")
    deadline = time.monotonic() + SECONDS
    while sum("Content Security Policy" in one for one in page.complaints) < 2:
        assert time.monotonic() < deadline, page.complaints
        page.evaluate("1")
