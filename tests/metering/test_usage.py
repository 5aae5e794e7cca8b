"""Requests to endpoints are counted, priced and shown: LLM judges, policies, in worker processes, over a resume."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.engines.openai import OpenAIEngine
from sparring.metering.usage import EndpointUsage, endpoint_name, meter_usage, read_usage
from sparring.report import write_report
from sparring.types import MessageRequest, Sampling
from tests.foreign import EXPERT

ROOT = Path(__file__).parents[2]
ASKED = MessageRequest(session_id="s", messages=({"role": "user", "content": "?"},), tools=(), sampling=Sampling())
USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}}
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """serve(usage, failures=0, text=...) -> the address of an endpoint that fails so often, then answers with that usage."""
    servers: list[ThreadingHTTPServer] = []

    def started(usage: Any, *, failures: int = 0, text: str = "ok") -> str:
        class Handler(BaseHTTPRequestHandler):
            left = failures

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                Handler.left -= 1
                choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                body = json.dumps({"choices": [choice], **({} if usage is None else {"usage": usage})}).encode()
                self.send_response(500 if Handler.left >= 0 else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/v1"

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(address: str, folder: Path, *, times: int = 1, during: str = "training") -> None:
    async def no_pause(_: float) -> None: ...

    async def main() -> None:
        engine = OpenAIEngine(address, "m", sleep=no_pause)
        for _ in range(times):
            await engine.answer(ASKED)
        await engine.close()

    with meter_usage(folder, during=during):
        asyncio.run(main())


def test_each_try_is_a_request_and_reported_tokens_add_up(serve: Serve, tmp_path: Path) -> None:
    address = serve(USAGE, failures=2)
    ask(address, tmp_path, times=3)
    (found,) = read_usage(tmp_path)
    assert found.endpoint == endpoint_name("m", address) == f"m@{address.removeprefix('http://').removesuffix('/v1')}"
    assert (found.requests, found.failed, found.unreported) == (5, 2, 0)
    assert (found.read, found.sampled, found.cached) == (300, 21, 180)
    # Of a million: 120 at 2, 180 from the cache at 0.5, 21 sampled at 10.
    assert found.cost({"m:read": 2.0, "m:cached": 0.5, "m:sample": 10.0}) == pytest.approx((240 + 90 + 210) / 1e6)
    assert found.cost({"m:read": 2.0}) == pytest.approx(600 / 1e6)
    assert found.cost({f"{found.endpoint}:read": 3.0, "m:read": 2.0}) == pytest.approx(900 / 1e6)
    assert found.cost({"sample": 1.0}) is None


def test_what_an_endpoint_does_not_report_is_unknown_and_costs_no_known_amount(serve: Serve, tmp_path: Path) -> None:
    ask(serve(None), tmp_path, times=2)
    (found,) = read_usage(tmp_path)
    assert (found.requests, found.unreported, found.read, found.sampled, found.cached) == (2, 2, None, None, None)
    assert found.cost({"m:read": 2.0}) is None
    assert "tokens unknown" in found.summary({"m:read": 2.0})


def test_a_sum_over_answers_of_which_some_report_none_is_marked_as_partial(tmp_path: Path) -> None:
    common = {"during": "training", "endpoint": "m@h", "answered": True, "cached": None}
    lines = [{**common, "read": 5, "sampled": 5}, {**common, "read": None, "sampled": None}]
    (tmp_path / "usage.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"during": "trai', "utf-8"
    )
    (found,) = read_usage(tmp_path)
    assert found.summary({}) == (
        "m@h: 2 requests, 5 tokens read, 5 sampled (not counted: 1 answers without token counts)"
    )


def test_no_key_or_user_of_an_address_is_in_a_name() -> None:
    assert endpoint_name("m", "https://me:secret@api.example.com/v1?key=secret") == "m@api.example.com"


def test_an_evaluation_counts_its_own_requests_and_a_run_all_of_them(serve: Serve, tmp_path: Path) -> None:
    address = serve(USAGE)
    ask(address, tmp_path, times=2)
    for _ in range(2):  # resumed
        ask(address, tmp_path, times=3, during="held_out-001")
    assert [one.requests for one in read_usage(tmp_path, during="held_out-001")] == [6]
    assert [one.requests for one in read_usage(tmp_path)] == [8]


GRADING = """
from sparring.engines.openai import OpenAIEngine
from sparring.rewards import Judge, question_and_answer

judge = Judge(OpenAIEngine("{address}", "big"), {{"right": "It is right."}}, shown=question_and_answer())
scorer = judge.score
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_a_judge_is_metered_in_tables_files_and_the_report(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    address = serve(USAGE, text='{"right": true, "reason": "so"}')
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "recipes" / "pointer_chase", "toy", ignore=shutil.ignore_patterns("__pycache__"))
    Path("toy/expert.py").write_text(EXPERT, "utf-8")
    Path("toy/grading.py").write_text(GRADING.format(address=address), "utf-8")
    changes = (
        "engine.type=scripted",
        "engine.script=expert:act",
        "evaluation.eval_num_tasks=3",
        "reward.scorer=grading:scorer",
        f"environment.workers={workers}",
    )
    prices = ("--price", "big:read=2", "--price", "big:sample=10")

    def sparring(*arguments: str) -> Any:
        result = CliRunner().invoke(app, [*arguments, *prices, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    report = sparring("eval", "toy", *changes)
    # Three episodes, one vote each: 300 tokens at 2 and 21 at 10 a million.
    (found,) = report["endpoints"]
    assert (found["endpoint"], found["requests"], found["read"], found["sampled"]) == (
        endpoint_name("big", address),
        3,
        300,
        21,
    )
    assert found["cost"] == pytest.approx(810 / 1e6)
    assert json.loads(Path(report["path"]).read_text())["endpoints"][0]["requests"] == 3
    run = Path(report["path"]).parents[1]
    assert sparring("runs", "show", str(run))["endpoints"] == [found]
    reviewed = json.loads(CliRunner().invoke(app, ["review", str(run), "--json"]).stdout)
    assert [(one["endpoint"], one["requests"]) for one in reviewed["endpoints"]] == [(found["endpoint"], 3)]
    page = write_report(run, prices={"big:read": 2.0, "big:sample": 10.0}).path.read_text("utf-8")
    assert f"sampled by {found['endpoint']}" in page
    assert "0.00081" in page


def test_a_summary_has_the_cost_at_the_prices_that_are_given() -> None:
    found = EndpointUsage(endpoint="m@h", requests=2, failed=1, unreported=0, read=1000, sampled=10, cached=None)
    assert found.summary({"m:read": 2.0}) == "m@h: 2 requests (1 failed), 1,000 tokens read, 10 sampled, cost 0.002"
