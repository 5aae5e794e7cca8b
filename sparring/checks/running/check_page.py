"""The findings as one self-contained HTML page, without scripts or network access."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sparring.checks import CHECKS
from sparring.checks.running.check_report import Checked, CheckReport
from sparring.errors import UsageError
from sparring.pages.html import document, finding_article, text


def refuse_page(path: Path) -> None:
    """Raise UsageError if the page cannot be written. The command calls this function before the check, so that no work
    is lost."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(
            f"--page {path} cannot be written. Specify a file in an existing folder to which you can write."
        )


def write_page(report: CheckReport, path: Path) -> None:
    """Write the page. Raises UsageError if the file cannot be written."""
    try:
        path.write_text(page(report), "utf-8")
    except OSError as error:
        raise UsageError(
            f"--page {path} cannot be written: {error}. Specify a file in a folder to which you can write."
        ) from error


def page(report: CheckReport) -> str:
    """Return the HTML document."""
    findings = "\n".join(map(finding_article, report.findings)) or "<p>Nothing was found.</p>"
    reach = "" if report.reach is None else f"<p>{text(report.reach)}.</p>\n"
    body = f"""<h1>Check of {text(report.recipe)}</h1>
{reach}<p>{report.counts}, in {report.seconds:.1f} s.</p>
{findings}
<h2>What was checked</h2>
<table>
<tr><th>check</th><th>what it looks for</th><th>how it ended</th><th class="number">s</th></tr>
{_rows(report.checked)}
</table>"""
    return document(f"sparring check {report.recipe}", body)


def _rows(checked: Iterable[Checked]) -> str:
    return "\n".join(
        f"<tr><td>{text(one.name)}</td><td>{text(CHECKS[one.name].meaning.partition(chr(10) * 2)[0])}</td>"
        f"<td>{text(one.state + (': ' + one.reason if one.reason else ''))}</td>"
        f'<td class="number">{one.seconds:.2f}</td></tr>'
        for one in checked
    )
