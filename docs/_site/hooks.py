"""Hooks of mkdocs: a page for each command, and links to files of the repository that are not part of the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from sparring.cli import app

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[([^\]\[]+)\]\((\.\./[^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files outside the documentation by their text and path. Raises FileNotFoundError for a path that
    does not exist."""
    folder = posixpath.dirname(page.file.src_uri)

    def replace(link: re.Match[str]) -> str:
        text, target = link[1], posixpath.normpath(posixpath.join("docs", folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        if not (ROOT / target).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}, which does not exist")
        return f"{text} (`{target}`)"

    return _LINK.sub(replace, markdown)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each command, made of its help."""
    pages = []
    for name, command in _commands(typer.main.get_command(app), "sparring"):
        path = f"commands/{name.removeprefix('sparring ').replace(' ', '-')}.md"
        files.append(File.generated(config, path, content=_describe(name, command)))
        pages.append({name: path})
    for section in config.nav or ():
        if "Reference" in section:
            section["Reference"].append({"Each command": pages})
    return files


def _commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name, in the order of `--help`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _describe(name: str, command: Any) -> str:
    lines = [f"# {name}", "", command.help or "", ""]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([name, *map(_argument, arguments), "[OPTIONS]"])
    lines += ["```sh", usage, "```", ""]
    for title, parameters in (("argument", arguments), ("option", options)):
        if parameters:
            lines += [f"| {title} | meaning |", "| --- | --- |"]
            lines += [f"| {_names(one)} | {_cell(one.help)} |" for one in parameters]
            lines.append("")
    return "\n".join(lines)


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_argument(parameter)}`"
    names = ", ".join(f"`{one}`" for one in (*parameter.opts, *parameter.secondary_opts))
    metavar = "" if parameter.is_flag else f" `{parameter.metavar or 'VALUE'}`"
    return names + metavar


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("\n", " ")
