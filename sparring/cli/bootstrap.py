"""`sparring bootstrap`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.cli.command import (
    Json,
    On,
    Overrides,
    Prices,
    app,
    print_json,
    read_place_overrides,
    report_failures,
    say,
)
from sparring.errors import GateError
from sparring.metering.prices import read_prices

if TYPE_CHECKING:
    from sparring.bootstrap import Bootstrapped

Teacher = Annotated[
    str, typer.Option(metavar="POLICY", help="openai:MODEL@URL, script:MODULE:FUNCTION, script:FILE.jsonl or expert.")
]
KeyVariable = Annotated[
    str | None, typer.Option(metavar="VAR", help="Environment variable with the key of openai:MODEL@URL.")
]
Out = Annotated[
    Path | None, typer.Option(help="The folder to write or continue; by default `bootstrap` in the recipe's.")
]
Threshold = Annotated[float, typer.Option(min=0, max=1, help="The least score of an episode that is kept.")]
MaxKept = Annotated[int | None, typer.Option("--demonstrations", min=1, help="Stop when there are this many.")]
MaxEpisodes = Annotated[int | None, typer.Option("--episodes", min=1, help="The most episodes of this call.")]
MaxCost = Annotated[float | None, typer.Option(min=0, help="Stop before the requests cost more; needs --price.")]
Attempts = Annotated[int, typer.Option(min=1, help="The most episodes of a task that has no accepted one.")]
Temperature = Annotated[
    float | None, typer.Option(min=0, metavar="T", help="By default the recipe's serving temperature.")
]


@app.command()
@report_failures
def bootstrap(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe.toml, or the folder it is in.")],
    teacher: Teacher,
    overrides: Overrides = None,
    on: On = None,
    key_env: KeyVariable = None,
    out: Out = None,
    threshold: Threshold = 1.0,
    demonstrations: MaxKept = None,
    episodes: MaxEpisodes = None,
    max_cost: MaxCost = None,
    attempts: Attempts = 1,
    temperature: Temperature = None,
    price: Prices = None,
    as_json: Json = False,
) -> None:
    """Collect demonstrations from a teacher: its episodes on training tasks that the recipe's scorer accepts. Running it
    again continues."""
    from sparring.bootstrap import BootstrapSettings
    from sparring.bootstrap import bootstrap as collect
    from sparring.config import load_config

    recipe = recipe / "recipe.toml" if recipe.is_dir() else recipe
    changes = [*read_place_overrides(on, recipe, overrides or ()), *(overrides or ())]
    prices = {**load_config(recipe, changes).tracking.prices, **read_prices(price or ())}
    settings = BootstrapSettings(
        teacher=teacher, api_key_env=key_env, threshold=threshold, max_kept=demonstrations, max_episodes=episodes,
        max_cost=max_cost, attempts=attempts, temperature=temperature, prices=prices,
    )  # fmt: skip
    folder = out or recipe.parent / "bootstrap"
    made = collect(recipe, folder, settings, overrides=changes, quiet=as_json)
    if as_json:
        print_json(_as_json(made, prices, recipe))
    else:
        _show(made, prices, recipe)
    if not made.num_kept:
        raise GateError(
            f"the scorer accepted none of {made.num_episodes} episodes of {teacher}; look at their scores in "
            f"{made.folder / 'episodes.jsonl'}, use a stronger teacher or more --attempts, or lower --threshold."
        )


def _show(made: Bootstrapped, prices: Mapping[str, float], recipe: Path) -> None:
    ended = "" if made.limit is None else f"; stopped at {made.limit}"
    lost = f", {made.num_lost} lost" if made.num_lost else ""
    say(f"{made.num_episodes} episodes{lost}: the scorer accepted {made.num_new}{ended}")
    say(f"{made.demonstrations} has {made.num_kept} demonstrations of {made.num_tasks} training tasks")
    for one in made.endpoints:
        say(f"requests: {one.summary(prices)}")
    if made.num_kept:
        say(f"set in {recipe}:\n\n[warm_start]\n" + "\n".join(_lines(made, recipe)))
        settings = " ".join(shlex.quote(f"warm_start.{line.replace(' = ', '=')}") for line in _lines(made, recipe))
        say(f"\nor: sparring train {shlex.quote(str(recipe))} {settings}")


def _lines(made: Bootstrapped, recipe: Path) -> list[str]:
    """Return the settings of the warm start that read the demonstrations. A path inside the recipe's folder is relative
    to it."""
    path = made.demonstrations.resolve()
    folder = recipe.parent.resolve()
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return [f"demonstrations = {json.dumps(str(shown))}", f"num_demonstrations = {made.num_kept}"]


def _as_json(made: Bootstrapped, prices: Mapping[str, float], recipe: Path) -> dict[str, object]:
    return {
        "folder": str(made.folder), "kept": made.num_kept, "new": made.num_new, "episodes": made.num_episodes,
        "lost": made.num_lost, "tasks": made.num_tasks, "limit": made.limit,
        "endpoints": [one.as_json(prices) for one in made.endpoints], "warm_start": _lines(made, recipe),
    }  # fmt: skip
