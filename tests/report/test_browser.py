"""The page in a real browser: no requests, no complaints, by keyboard, dark and light, and hostile text stays text."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparring.pages.html import visible
from sparring.report import write_report
from sparring.types import Outcome
from tests.report.browser import Page, browser, needs_chromium
from tests.report.hostile import PAYLOADS
from tests.report.stored_run import StoredRun, episode, evaluation, finding, held_out

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        opened.size(1280, 800)
        yield opened


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = StoredRun(tmp_path_factory.mktemp("healthy"))
    numbers = {"rollout/reward/mean": 0.5, "rollout/score/mean": 0.25, "training/entropy": 1.0}
    played = [episode(f"train/0/a/{place}.0", reward=place % 2, score=place % 2) for place in range(4)]
    paid = episode("train/1/b/0.0", reward=1.0, score=0.0, outcome=Outcome.MAX_TURNS)
    other = episode("train/1/b/1.0", reward=1.0, score=1.0)
    run.log(
        {1: numbers, 2: numbers},
        {"train-1": played, "train-2": [paid, other]},
        [finding(trajectories=["train/1/b/0.0"])],
    )
    first, last = held_out("base-0", [0.0] * 25), held_out("tuned-0", [1.0] * 25)
    run.evaluated((evaluation("base", first), first), (evaluation("tuned", last), last))
    return write_report(run.path).path


def text_of(page: Page, selector: str) -> str:
    return page.evaluate(f"document.querySelector({selector!r}).innerText")


def test_it_opens_from_disk_with_no_request_and_no_complaint_and_shows_the_disagreement_first(
    page: Page, healthy: Path
) -> None:
    page.open(healthy)
    assert page.complaints == []
    assert page.requests == [healthy.resolve().as_uri()]
    headline = text_of(page, "#headline")
    assert headline.startswith("One seed, greedily: better than the base model")
    assert "Do not trust these numbers" in headline
    assert page.evaluate("document.querySelector('#headline').getBoundingClientRect().bottom < innerHeight")
    assert "paid and wrong" in text_of(page, "#panes")
    assert page.evaluate("document.querySelectorAll('#list button').length") == 56


def test_it_is_worked_by_keyboard(page: Page, healthy: Path) -> None:
    page.open(healthy)
    reached = []
    for _ in range(24):
        page.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"which", "outcome", "where", "task", "coloring"} <= set(reached)
    # The map and the list are one stop each.
    assert sum(name.startswith("task ") for name in reached) == 1
    assert sum(name.startswith("row") for name in reached) == 1
    page.evaluate("document.querySelector('#list button[tabindex=\"0\"]').focus()")
    before = text_of(page, "#panes h3")
    page.press("ArrowDown")
    page.press("Enter")
    assert text_of(page, "#panes h3") != before


def test_filters_comparison_and_tokens(page: Page, healthy: Path) -> None:
    page.open(healthy)
    choose(page, "which", "disagreement")
    assert page.evaluate("document.querySelectorAll('#list button').length") == 1
    choose(page, "which", "all")
    choose(page, "outcome", "max_turns")
    assert text_of(page, "#count") == "1 of 56 match."
    page.evaluate("document.querySelector('#list button').click()")
    page.evaluate(
        "(() => { const s = document.querySelector('#panes select'); s.selectedIndex = 1;"
        " s.dispatchEvent(new Event('change')) })()"
    )
    assert page.evaluate("document.querySelectorAll('.pane').length") == 2
    choose(page, "coloring", "logprob")
    assert text_of(page, ".tokens") == "the answer<|end|>"
    # -0.5 of -4, of 70 % at most: 9 %.
    assert page.evaluate("document.querySelector('.tokens span').style.getPropertyValue('--share')") == "9%"
    page.evaluate("document.querySelector('[data-task=\"h3\"]').click()")
    panes = page.evaluate("[...document.querySelectorAll('.pane h3 small')].map((each) => each.innerText)")
    assert panes == ["held_out/tuned-0@1/h3/0.0", "held_out/base-0@1/h3/0.0"]
    page.evaluate("document.querySelector('[data-episode]').click()")
    assert "train/1/b/0.0" in text_of(page, "#panes h3")
    assert page.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page: Page, healthy: Path, scheme: str) -> None:
    page.prefer(scheme)
    page.open(healthy)
    for selector in (
        "#headline",
        ".looks small",
        ".facts dt",
        "nav a",
        ".kind",
        "#list small",
        ".message pre",
        "svg text",
    ):
        ink, paper = page.evaluate(
            f"(() => {{ const e = document.querySelector({selector!r}), s = getComputedStyle(e);"
            " return [e.closest('svg') ? s.fill : s.color, getComputedStyle(document.body).backgroundColor] })()"
        )
        # WCAG 2.1, success criterion 1.4.3: 4.5 to 1.
        assert contrast(ink, paper) >= 4.5, selector
    page.prefer("light")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every payload as what the agent wrote, called and was answered, as a task's id and fields, a component, a part, an error, a
    finding and a metric."""
    run = StoredRun(tmp_path_factory.mktemp("hostile"))
    played = []
    for place, payload in enumerate(PAYLOADS):
        call = {"id": "c", "type": "function", "function": {"name": payload, "arguments": payload}}
        messages = [
            {"role": "user", "content": payload},
            {"role": payload, "content": payload},
            {"role": "assistant", "content": payload, "tool_calls": [call], "reasoning_content": payload},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": payload}]},
            {"role": "assistant", "content": payload, "malformed_tool_calls": [{"text": payload}]},
        ]
        one = episode(f"train/0/t{place}/0.0", reward=1.0, score=0.0, messages=messages, fields={payload: payload})
        object.__setattr__(one.task, "id", payload)
        object.__setattr__(one, "id", f"train/0/{payload}/{place}.0")
        object.__setattr__(one, "error", payload)
        object.__setattr__(one, "score_parts", {payload: 0.5})
        object.__setattr__(one.reward, "components", {payload: 1.0})
        played.append(one)
    found = [
        finding(
            payload,
            step=1,
            symptom=payload,
            evidence={payload: payload},
            change=payload,
            confirm=payload,
            trajectories=[played[place].id],
        )
        for place, payload in enumerate(PAYLOADS[:40])
    ]
    metrics = {f"rollout/reward/components/{payload}": 0.5 for payload in PAYLOADS[:5]}
    run.log({1: {"rollout/reward/mean": 1.0, **metrics}}, {"train-1": played}, found)
    run.folder.write_vocabulary(PAYLOADS[:5])
    run.folder.set_status("failed", reason=PAYLOADS[0])
    return write_report(run.path).path


def test_a_hundred_hostile_texts_run_nothing_ask_for_nothing_and_are_read_as_they_are(
    page: Page, hostile: Path
) -> None:
    assert len(PAYLOADS) >= 100
    page.open(hostile)
    elements = "document.querySelectorAll('script, iframe, img, object, embed, form, base, style, link, meta').length"
    before = page.evaluate(elements)
    read = page.evaluate(
        """(() => {
          const read = [];
          document.querySelectorAll('#list button').forEach((button) => {
            button.click();
            const color = document.getElementById('coloring');
            for (const how of ['logprob', 'advantage', '']) { color.value = how; color.dispatchEvent(new Event('change')); }
            for (const each of document.querySelectorAll('#panes *')) each.dispatchEvent(new MouseEvent('mouseover'));
            read.push([document.querySelector('#panes h3').firstChild.textContent,
                       [...document.querySelectorAll('#panes .message pre')].map((each) => each.textContent).join('\\n')]);
          });
          document.querySelectorAll('[data-episode]').forEach((button) => button.click());
          return read;
        })()"""
    )
    assert page.evaluate("window.hit") is None
    assert page.complaints == []
    assert page.requests == [hostile.resolve().as_uri()]
    # Two styles of its own would be one too many: the page has one style, one script, its data and three metas.
    assert page.evaluate(elements) == before == 6
    assert (
        page.evaluate("document.querySelectorAll('[onerror], [onload], [onclick], [onfocus], [onmouseover]').length")
        == 0
    )
    shown = dict(read)
    for payload in PAYLOADS:
        task = visible(payload.encode("utf-8", "replace").decode()) if "\ud83d" in payload else visible(payload)
        assert shown[task].count(task) >= 4
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", hostile.read_text("utf-8"))


def test_the_hostile_texts_do_act_on_a_page_that_takes_them_as_markup(page: Page, tmp_path: Path) -> None:
    """Else the test above could not fail."""
    acted = 0
    for payload in PAYLOADS[:50:5]:
        careless = tmp_path / "careless.html"
        careless.write_text(f"<!doctype html><body>{payload}", "utf-8", "replace")
        page.open(careless)
        acted += page.evaluate("window.hit") == 1 or len(page.requests) > 1
    assert acted >= 5


def choose(page: Page, name: str, value: str) -> None:
    page.evaluate(
        f"(() => {{ const s = document.getElementById({name!r}); s.value = {value!r}; s.dispatchEvent(new Event('change')) }})()"
    )


def contrast(one: str, other: str) -> float:
    """Of two `rgb(r, g, b)`, as WCAG 2.1 defines it."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)
