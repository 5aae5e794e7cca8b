"""The pictures of docs/report.md from a run: `python -m tests.report.pictures RUN docs`. Needs a chromium; no test."""

import sys
import tempfile
from pathlib import Path

from sparring.report import write_report
from tests.report.browser import browser

WIDTH, HEIGHT = 1280, 800


def main(run: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as name, browser(Path(name)) as page:
        written = write_report(run, Path(name) / "report.html")
        page.size(WIDTH, HEIGHT)
        for scheme in ("dark", "light"):
            page.prefer(scheme)
            page.open(written.path)
            page.picture(target / f"report-{scheme}.png")
        page.evaluate(
            "(() => { const how = document.getElementById('coloring'); how.value = 'logprob';"
            " how.dispatchEvent(new Event('change')); document.querySelector('button.task.fixed').click() })()"
        )
        page.picture(target / "report-episodes.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
