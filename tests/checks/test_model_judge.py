"""Rewards and scorers that ask a model: an outage decides nothing, a refused key ends the check, the cost is reported."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from tests.foreign import EXPERT

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL_GRADED = """
from sparring.engines.openai import OpenAIEngine
from sparring.rewards import Judge, question_and_answer

CRITERIA = {{"right": "The answer equals the reference."}}
judge = Judge(OpenAIEngine("{address}", "big"), CRITERIA, shown=question_and_answer("answer"))


async def reward(trajectory):
    return await judge(trajectory)


scorer = judge.score
"""


def compare(shown: Mapping[str, str]) -> dict[str, bool]:
    """Return the model's grade of an answer, by criterion."""
    return {"right": shown.get("reference", "") in shown["answer"]}


class Endpoint:
    """A model that grades answers by comparing texts, unless its status is not 200."""

    def __init__(self, grade: Callable[[Mapping[str, str]], Mapping[str, bool]] = compare) -> None:
        self.status, self.seconds = 200, 0.0
        self.num_asked = self.num_at_once = self.most_at_once = 0
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.num_at_once += 1
                endpoint.most_at_once = max(endpoint.most_at_once, endpoint.num_at_once)
                time.sleep(endpoint.seconds)
                endpoint.num_at_once -= 1
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                endpoint.num_asked += 1
                lines = [line.partition(": ") for line in asked["messages"][1]["content"].split("\n")]
                shown = {name: json.loads(text) for name, _, text in lines}
                verdict = {**grade(shown), "reason": "compared"}
                choice = {"message": {"role": "assistant", "content": json.dumps(verdict)}, "finish_reason": "stop"}
                answered = {"choices": [choice], "usage": {"prompt_tokens": 200, "completion_tokens": 10}}
                refused = {"error": {"message": "Incorrect API key provided"}}
                body = json.dumps(answered if endpoint.status == 200 else refused).encode()
                self.send_response(endpoint.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    started = Endpoint()
    yield started
    started.close()


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[[str], Path]:
    """recipe(address) -> the clean recipe with a reward and a scorer that ask the model there."""

    def written(address: str) -> Path:
        shutil.copytree(HERE / "clean" / "library", tmp_path / "library", ignore=shutil.ignore_patterns("__pycache__"))
        (tmp_path / "library" / "model_graded.py").write_text(MODEL_GRADED.format(address=address), "utf-8")
        return tmp_path / "library"

    return written


def check(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    done = CliRunner().invoke(
        app,
        [
            "check",
            str(folder),
            "reward.reward=model_graded:reward",
            "reward.scorer=model_graded:scorer",
            *arguments,
            "--json",
        ],
    )
    return done.exit_code, json.loads(done.stdout) if done.stdout.startswith("{") else {}, done.output


def test_a_judge_that_is_down_leaves_its_rules_undecided_with_the_outage_named(recipe: Callable[[str], Path]) -> None:
    closed = Endpoint()
    closed.close()
    code, report, output = check(recipe(closed.address), "--only", "reward", "--minutes", "0.5")
    assert code == 5, output
    undecided = [one for one in report["checked"] if one["state"] == "undecided"]
    assert {"reward.range", "reward.order", "reward.agreement", "reward.scorer"} <= {one["rule"] for one in undecided}
    (finding,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert "could not be decided" in finding["symptom"]
    assert closed.address in finding["symptom"]
    assert "ConnectError" in finding["symptom"]
    assert "cannot be read" not in json.dumps(report)


def test_a_judge_that_refuses_the_key_ends_the_check_with_exit_code_4(
    endpoint: Endpoint, recipe: Callable[[str], Path]
) -> None:
    endpoint.status = 401
    code, _, output = check(recipe(endpoint.address), "--only", "reward")
    assert code == 4, output
    assert "401: Incorrect API key provided" in output
    assert endpoint.num_asked == 1


def test_an_evaluation_whose_judge_refuses_the_key_ends_with_exit_code_4(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.status = 401
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "recipes" / "pointer_chase", "toy", ignore=shutil.ignore_patterns("__pycache__"))
    Path("toy/expert.py").write_text(EXPERT, "utf-8")
    Path("toy/model_graded.py").write_text(MODEL_GRADED.format(address=endpoint.address), "utf-8")
    done = CliRunner().invoke(
        app,
        [
            "eval",
            "toy",
            "engine.type=scripted",
            "engine.script=expert:act",
            "evaluation.eval_num_tasks=1",
            "reward.scorer=model_graded:scorer",
        ],
    )
    assert done.exit_code == 4, done.output
    assert "401: Incorrect API key provided" in done.output


def test_the_cost_of_a_judge_is_announced_before_many_concurrent_requests_and_counted(
    endpoint: Endpoint, recipe: Callable[[str], Path]
) -> None:
    endpoint.seconds = 0.1
    prices = 'tracking.prices={"big:read" = 2.0, "big:sample" = 10.0}'
    _, report, output = check(recipe(endpoint.address), "--only", "reward", "--only", "budgets", prices)
    assert "could not be decided" not in output
    assert f"openai:big@{endpoint.address}, and so does this check: it makes about 120 requests" in output
    assert 60 <= endpoint.num_asked <= 120
    assert endpoint.most_at_once >= 20
    (used,) = report["measured"]["endpoints"]
    assert (used["requests"], used["read"], used["sampled"]) == (
        endpoint.num_asked,
        200 * endpoint.num_asked,
        10 * endpoint.num_asked,
    )
    # 200 tokens at 2 and 10 at 10 a million: 0.0005 a request, and 10 steps of 4 groups of 4 episodes.
    assert used["cost"] == pytest.approx(0.0005 * endpoint.num_asked)
    (note,) = [one for one in report["findings"] if one["rule"] == "budgets.model_judge"]
    assert (note["severity"], note["evidence"]["requests"], note["evidence"]["tokens_read"]) == ("note", 160, 32_000)
    assert note["evidence"]["cost"] == pytest.approx(0.08)


def test_a_recipe_without_a_judge_reports_nothing_about_one(recipe: Callable[[str], Path]) -> None:
    done = CliRunner().invoke(app, ["check", str(recipe("http://127.0.0.1:9/v1")), "--only", "reward"])
    assert done.exit_code == 0
    assert "call the model" not in done.output
    assert "asked:" not in done.output
