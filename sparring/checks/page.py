"""The findings as one page that needs nothing else: no script, no network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from html import escape
from pathlib import Path

from sparring.checks.registry import CHECKS
from sparring.checks.report import SEVERITIES, Checked, CheckReport
from sparring.errors import UsageError
from sparring.findings import Finding

_STYLE = """
:root { color-scheme: light dark; --error: #b3261e; --warning: #8a5a00; --note: #3b5b7c; --line: #8885; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 0 }
article { border-left: 4px solid var(--line); padding: .2rem 0 .2rem 1rem; margin: 1.5rem 0 }
article.error { border-color: var(--error) } article.warning { border-color: var(--warning) }
article.note { border-color: var(--note) }
.kind { font-weight: 600 } .error .kind { color: var(--error) } .warning .kind { color: var(--warning) }
.note .kind { color: var(--note) }
pre { overflow-x: auto; background: #8881; padding: .6rem; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top }
td { border-top: 1px solid var(--line) } td.number { text-align: right; font-variant-numeric: tabular-nums }
"""


def refuse_page(path: Path) -> None:
    """Raises UsageError when no page can be written there, for which a check would have run in vain."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--page {path} cannot be written; name a file in a folder that exists and may be written to.")


def write_page(report: CheckReport, path: Path) -> None:
    """Write the page. Raises UsageError when the file cannot be written."""
    try:
        path.write_text(page(report), "utf-8")
    except OSError as error:
        raise UsageError(f"--page {path} cannot be written: {error}; name a file in a folder to write in.") from error


def page(report: CheckReport) -> str:
    """The whole document."""
    counts = ", ".join(f"{report.count(severity)} {severity.value}s" for severity in SEVERITIES)
    findings = "\n".join(map(_article, report.findings)) or "<p>Nothing was found.</p>"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>sparring check {escape(report.recipe)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Check of {escape(report.recipe)}</h1>
<p>{counts}, in {report.seconds:.1f} s.</p>
{findings}
<h2>What was checked</h2>
<table>
<tr><th>check</th><th>what it looks for</th><th>how it ended</th><th>s</th></tr>
{_rows(report.checked)}
</table>
</body>
</html>
"""


def _article(finding: Finding) -> str:
    evidence = json.dumps(dict(finding.evidence), indent=1, ensure_ascii=False)
    return f"""<article class="{finding.severity.value}">
<h2><span class="kind">{finding.severity.value}</span> {escape(finding.rule)}</h2>
<p>{escape(finding.symptom)}</p>
<pre>{escape(evidence)}</pre>
<p><b>Change:</b> {escape(finding.change)}<br><b>Confirm:</b> {escape(finding.confirm)}</p>
</article>"""


def _rows(checked: Iterable[Checked]) -> str:
    return "\n".join(
        f"<tr><td>{escape(one.name)}</td><td>{escape(CHECKS[one.name].meaning.partition(chr(10))[0])}</td>"
        f"<td>{escape(one.state + (': ' + one.reason if one.reason else ''))}</td>"
        f'<td class="number">{one.seconds:.2f}</td></tr>'
        for one in checked
    )
