"""HTML pages that open from disk without other files: one style, one way to escape untrusted text, and one content
policy.

The output of an agent, a tool or a reward is treated as hostile. In markup, it passes through `text`. In scripts, it
appears only in `data_element`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from sparring.findings import Finding
from sparring.types import Json

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
"""Control and format characters that hide, reorder or end text, and lone surrogates. Tabs, line ends and the joiners of
scripts and emoji are kept."""
_ESCAPE = re.compile(r"\\(?:u00([01][0-9a-f])|(.))")
"""An escape in JSON text: a backslash and what follows."""
_ESCAPED = {"b": "\b", "f": "\f", "r": "\r"}
_CONTROL_PICTURES = 0x2400
"""The first picture of the C0 control characters. The picture of U+001B, for example, is U+241B."""


def visible(text: str) -> str:
    """Replace characters that would affect a page or a terminal with visible ones. ESC becomes its control picture;
    others become text such as `[U+202E]`."""
    return _INVISIBLE.sub(_shown, text)


def text(value: object) -> str:
    """Return a value as text for markup: between tags, or in a quoted attribute."""
    return escape(visible(str(value)))


def data_element(name: str, value: Json) -> str:
    """Return a value as a JSON element that is never executed and that no content can close."""
    return f'<script type="application/json" id="{escape(name)}">{data_text(value)}</script>'


def data_text(value: Json) -> str:
    """Return a value as JSON without any character that has a meaning in HTML. Control characters in its strings are
    made visible.

    Raises ValueError for NaN and infinities, which JSON cannot represent.
    """
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # json.dumps escapes the first control characters, so `visible` would not see them.
    shown = visible(_ESCAPE.sub(_unescaped, content))
    return shown.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def document(
    title: str, body: str, *, styles: Sequence[str] = (), script: str = "", asks_its_server: bool = False
) -> str:
    """Return the whole HTML document.

    `body` is markup. `script` runs at the end of the document, and no other script runs. The page fetches nothing. With
    `asks_its_server`, the page may send requests, but only to its own server.
    """
    style = "\n".join((asset("sparring.pages", "style.css"), *styles))
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {_hash(script) if script else repr('none')}",
            *(["connect-src 'self'"] if asks_its_server else []),
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    end = f"<script>{script}</script>\n" if script else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
{end}</body>
</html>
"""


def finding_article(finding: Finding, *, more: str = "") -> str:
    """Return a finding with its evidence as markup; `more` is markup to put below the finding."""
    evidence = json.dumps(dict(finding.evidence), indent=1, ensure_ascii=False)
    where = "" if finding.step is None else f" <small>after step {finding.step}</small>"
    return f"""<article class="{finding.severity.value}">
<h3><span class="kind">{finding.label}</span> {text(finding.rule)}{where}</h3>
<p>{text(finding.symptom)}</p>
<details><summary>Evidence</summary><pre>{text(evidence)}</pre></details>
<p><b>Change:</b> {text(finding.change)}<br><b>Confirm:</b> {text(finding.confirm)}</p>
{more}</article>"""


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with a heading as markup. Numbers have three decimals."""
    head = "".join(f"<th>{text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h3>{text(title)}</h3><table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    return text(f"{value:.3f}" if isinstance(value, float) else value)


def asset(package: str, name: str) -> str:
    """Return the text of a style or script file in a package."""
    return files(package).joinpath(name).read_text("utf-8")


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(_CONTROL_PICTURES + code) if code < 0x20 else f"[U+{code:04X}]"


def _unescaped(match: re.Match[str]) -> str:
    """Return the control character that a JSON escape stands for. Line breaks, tabs and some others stay escaped."""
    if match[1] is not None:
        return chr(int(match[1], 16))
    return _ESCAPED.get(match[2], match[0])


def _hash(content: str) -> str:
    """Return the hash that a content policy uses to name an inline element."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
