"""`sparring config`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sparring.cli.command import Json, app, print_json, report_failures, say
from sparring.config.describe import Setting, describe_settings
from sparring.tracking import Console


@app.command()
@report_failures
def config(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="A key such as optimizer.learning_rate, or a section.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the settings of a recipe: type, range, default, meaning, and the functions that read each one."""
    settings = describe_settings(key)
    if as_json:
        print_json([one.as_json() for one in settings])
    elif len(settings) == 1:
        _show(settings[0])
    else:
        rows = [[one.key, _type_and_range(one), json.dumps(one.default), one.meaning] for one in settings]
        Console().table("settings", ["key", "type", "default", "meaning"], rows)


def _show(setting: Setting) -> None:
    say(setting.key)
    say(f"  type     {setting.type}")
    say(f"  range    {setting.range or 'every value of the type'}")
    say(f"  default  {json.dumps(setting.default)}")
    say(f"  meaning  {setting.meaning}")
    say(f"  read by  {setting.read_by or 'every run'}")


def _type_and_range(setting: Setting) -> str:
    return ", ".join(filter(None, (setting.type, setting.range)))
