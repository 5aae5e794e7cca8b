"""A model that reads the recipe: its requests are run, its report becomes findings, and it never stops a training."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sparring.cli import app

RECIPE = Path(__file__).parent / "clean" / "library"
QUOTE = "class Desk(Environment):"
TASK = "train-3"
"""A training task of the recipe."""
DEFECT = {
    "symptom": "find hides the shelf of long titles.",
    "place": "environment.py:1",
    "quote": QUOTE,
    "tasks": [TASK],
    "probe": None,
    "because": "I computed it.",
    "change": "Return all shelves.",
    "certainty": 0.9,
}


class Model:
    """An OpenAI-compatible endpoint that answers with fixed texts in order, and keeps the messages that it got."""

    def __init__(self, replies: Sequence[str], status: int = 200) -> None:
        self.conversations: list[list[dict[str, Any]]] = []
        model, left = self, list(replies)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                model.conversations.append(asked["messages"])
                choice = {"message": {"role": "assistant", "content": left.pop(0) if left else "{}"}}
                usage = {"prompt_tokens": 1000, "completion_tokens": 10}
                answered = {"choices": [{**choice, "finish_reason": "stop"}], "usage": usage}
                body = json.dumps(answered if status == 200 else {"error": {"message": "bad key"}}).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.name = f"http://127.0.0.1:{self._server.server_port}/v1#reader"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def shown_last(self) -> str:
        """The last message that the model got."""
        return self.conversations[-1][-1]["content"]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def start() -> Iterator[Callable[..., Model]]:
    """Return a function that starts an endpoint, which is closed after the test."""
    started: list[Model] = []

    def begin(*replies: object, status: int = 200) -> Model:
        texts = [one if isinstance(one, str) else json.dumps(one) for one in replies]
        started.append(Model(texts, status))
        return started[-1]

    yield begin
    for one in started:
        one.close()


def review(*arguments: str) -> tuple[int, dict[str, Any], str]:
    done = CliRunner().invoke(app, ["check", str(RECIPE), "--only", "review", *arguments, "--json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout.startswith("{") else {}, done.output


def report(model: Model) -> dict[str, Any]:
    """Return the only finding of a review by this model."""
    code, document, output = review("--reviewer", model.name)
    assert code == 0, output
    (finding,) = document["findings"]
    return finding


def test_the_reviewer_reads_source_tools_prompts_hidden_fields_and_episodes(start: Callable[..., Model]) -> None:
    model = start({"defects": []})
    code, document, output = review("--reviewer", model.name)
    assert code == 0, output
    assert document["findings"] == []
    system, material = (one["content"] for one in model.conversations[0])
    assert '{"defects": [' in system
    for shown in (QUOTE, '"name": "floor"', "hidden fields: ", " nothing, task", "[environment]"):
        assert shown in material, shown
    assert document["measured"]["endpoints"][0]["requests"] == 1


def test_a_requested_episode_is_run_and_shown_as_the_proof_of_the_finding(start: Callable[..., Model]) -> None:
    probe = {"id": "p1", "task": TASK, "turns": [[{"tool": "find", "arguments": {"title": "Odyssey"}}]]}
    model = start({"probes": [{**probe, "answer": "nowhere"}]}, {"defects": [{**DEFECT, "probe": "p1"}]})
    finding = report(model)
    assert "assistant: nowhere" in model.shown_last
    assert "reward 0.0" in model.shown_last
    assert finding["severity"] == "warning"
    assert finding["symptom"] == DEFECT["symptom"]
    assert "Odyssey" in finding["evidence"]["episode"]


def test_a_quotation_that_is_not_in_the_material_makes_a_note(start: Callable[..., Model]) -> None:
    finding = report(start({"defects": [{**DEFECT, "quote": "if title == 'long': return None"}]}))
    assert finding["severity"] == "note"
    assert finding["evidence"]["is_quoted_exactly"] is False


def test_an_uncertain_reviewer_makes_a_note(start: Callable[..., Model]) -> None:
    assert report(start({"defects": [{**DEFECT, "certainty": 0.3}]}))["severity"] == "note"


def test_a_reply_in_a_code_block_counts(start: Callable[..., Model]) -> None:
    text = f"Here it is:\n```json\n{json.dumps({'defects': [DEFECT]})}\n```"
    assert report(start(text))["severity"] == "warning"


def test_impossible_episodes_are_explained_to_the_reviewer(start: Callable[..., Model]) -> None:
    probes: list[dict[str, Any]] = [
        {"id": "p1", "task": "none such"},
        {"id": "p2", "task": TASK, "turns": 7},
        {"id": "p3", "task": TASK, "turns": [["call"]]},
        {"id": "p4", "task": TASK, "turns": [[{"tool": "fly", "arguments": {}}]]},
    ]
    model = start({"probes": probes}, {"defects": []})
    assert review("--reviewer", model.name)[0] == 0
    shown = dict(one.split("\n", 1) for one in model.shown_last.removeprefix("### ").split("\n\n### "))
    assert shown["p1"] == "There is no training task 'none such'."
    assert shown["p2"] == shown["p3"] == "The turns are not lists of calls with a tool and arguments."
    assert "no tool 'fly'" in shown[f"p4, task {TASK}"]


def test_rounds_of_episodes_are_limited(start: Callable[..., Model]) -> None:
    probes = {"probes": [{"id": "p", "task": "none such"}]}
    model = start(*[probes] * 4, {"defects": []})
    assert review("--reviewer", model.name)[0] == 0
    assert len(model.conversations) == 5
    assert model.shown_last.startswith("This was the last round")


def test_replies_without_a_review_leave_the_rule_undecided(start: Callable[..., Model]) -> None:
    model = start("I like it.", "Really.", '{"defects": "none"}')
    code, document, _ = review("--reviewer", model.name)
    assert code == 5
    assert len(model.conversations) == 3
    (finding,) = document["findings"]
    assert "instead of a review, 3 times" in finding["symptom"]


def test_a_refused_key_ends_the_check(start: Callable[..., Model]) -> None:
    code, _, output = review("--reviewer", start(status=401).name)
    assert code == 4, output


def test_an_address_without_a_model_is_refused() -> None:
    code, _, output = review("--reviewer", "http://127.0.0.1:9/v1")
    assert code == 2
    assert "--reviewer http://127.0.0.1:9/v1 has no model; write URL#MODEL" in " ".join(output.split())


def test_nothing_is_sent_without_the_option() -> None:
    _, document, _ = review()
    (checked,) = document["checked"]
    assert checked["state"] == "skipped"
    assert "--reviewer URL#MODEL" in checked["reason"]
