"""The pictures of docs/tracking.md from a server that received a run: `python -m tests.tracking.pictures ADDRESS RUN docs`,
where RUN is the run's id there. Needs a chromium; no test."""

import sys
import tempfile
import time
from pathlib import Path

import mlflow

from tests.report.browser import Page, browser

WIDTH, HEIGHT = 1440, 860
SECONDS = 120.0
"""For the page's own requests, on a busy machine."""
DRAWN_SECONDS = 15.0
"""Charts draw themselves after their names stand there."""
CLOSE_ASSISTANT = """
    for (const one of document.querySelectorAll("button")) if (/close/i.test(one.ariaLabel || "")) one.click();
"""
OPEN_FIRST_TRACE = """
    [...document.querySelectorAll("*")].find(one => !one.children.length && /role.:.user/.test(one.textContent)).click();
"""


def main(address: str, run: str, target: Path) -> None:
    mlflow.set_tracking_uri(address)
    experiment = mlflow.MlflowClient().get_run(run).info.experiment_id
    base = f"{address}/#/experiments/{experiment}"
    with tempfile.TemporaryDirectory() as name, browser(Path(name)) as page:
        page.size(WIDTH, HEIGHT)
        page.visit(f"{base}/runs/{run}/model-metrics")
        _wait_for(page, "batch_valid_ratio")
        page.evaluate(CLOSE_ASSISTANT)
        page.evaluate("document.querySelector('input[placeholder^=\"Search metric\"]').focus()")
        page.send("Input.insertText", text="rollout/reward")
        time.sleep(DRAWN_SECONDS)
        page.picture(target / "mlflow-metrics.png")
        page.visit("about:blank")  # another #route of the same page would load nothing anew
        page.visit(f"{base}/traces")
        _wait_for(page, '"role":"user"')
        page.evaluate(CLOSE_ASSISTANT)
        page.evaluate(OPEN_FIRST_TRACE)
        _wait_for(page, "model call")
        time.sleep(DRAWN_SECONDS)
        page.picture(target / "mlflow-trace.png")


def _wait_for(page: Page, words: str) -> None:
    deadline = time.monotonic() + SECONDS
    while words not in page.evaluate("document.body ? document.body.innerText : ''"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{words!r} did not appear within {SECONDS:.0f} s")
        time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
