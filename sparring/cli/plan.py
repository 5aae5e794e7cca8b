"""`sparring plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sparring.cli.command import Json, On, Overrides, app, print_json, read_place_overrides, report_failures, say
from sparring.config import Config, load_config
from sparring.errors import GateError
from sparring.planning.devices import Device, parse_gpu, this_machine, with_price
from sparring.planning.division import RUN, refuse_unused
from sparring.planning.plan import Episodes, Plan, changes, longest_episodes, make_plan, settings_of, show_bytes
from sparring.planning.resolve import require_shape
from sparring.planning.shapes import ModelShape
from sparring.runtime.machine import default_threads
from sparring.tracking import Console


@app.command()
@report_failures
def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe.toml, or the folder it is in.")],
    overrides: Overrides = None,
    on: On = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:N]", help="Plan for N such GPUs (1 by default), such as H100:8, instead of this machine."
        ),
    ] = None,
    episode_tokens: Annotated[
        int | None, typer.Option(min=1, help="Expected tokens per episode, including the prompt.")
    ] = None,
    sampled_tokens: Annotated[int | None, typer.Option(min=1, help="Expected sampled tokens per episode.")] = None,
    as_json: Json = False,
) -> None:
    """Show whether a recipe fits a device, which settings fit, and the run's time and cost. Exit code 5 if the recipe
    does not fit."""
    placed = read_place_overrides(on, Path(recipe), overrides or ())
    config = load_config(Path(recipe), [*placed, *(overrides or ())])
    model = require_shape(config)
    if gpu is None:
        device = _calibrated(config, model)
    else:
        device = parse_gpu(gpu)
        refuse_unused(config, device)
    episodes = _expected_episodes(config, episode_tokens, sampled_tokens)
    made = make_plan(config, model, with_price(device, config.tracking.prices.get("hour")), episodes)
    if as_json:
        print_json(made.as_json())
    else:
        show(made)
    refusal = made.refusal()
    if refusal is not None:
        raise GateError(refusal)


def _expected_episodes(config: Config, tokens: int | None, sampled: int | None) -> Episodes:
    """Return the longest episodes that the recipe allows, or episodes of the length that the command states."""
    longest = longest_episodes(config)
    if tokens is None and sampled is None:
        return longest
    total = tokens or longest.tokens
    return replace(
        longest,
        tokens=total,
        sampled=min(sampled or longest.sampled, total),
        source="as long as the command states",
    )


def show(made: Plan) -> None:
    for table in made.tables:
        rows = [[line.name, show_bytes(line.bytes), line.key] for line in table.lines]
        rows.append(["total", show_bytes(table.bytes), f"of {show_bytes(made.device.memory_bytes)}"])
        contents = "" if made.tables[0].contents == RUN and len(made.tables) == 1 else f": {table.contents.name}"
        Console().table(f"{made.model.name} on {made.device.name}{contents}", ["memory", "size", "set by"], rows)
    if made.chosen is not None and not made.fits:
        say(f"the table is for the settings that fit: {', '.join(changes(made.asked, made.chosen))}")
    if made.server_share is not None and made.fits:
        say(f"vLLM may use {made.server_share:.0%} of the GPU's memory, and the learner needs the rest")
    if made.asked.checkpointing and not made.asked.shards_weights and made.fits:
        say("the recipe fits because activations are computed again (optimizer.activation_checkpointing)")
    cost, episodes = made.cost, made.episodes
    step = cost.sample_seconds + cost.train_seconds
    say(
        f"sampling {cost.sample_rate:,.0f} tokens/s, learning {cost.train_rate:,.0f} tokens/s; a step of {episodes.per_step} "
        f"episodes takes {step:,.0f} s ({cost.sample_seconds:,.0f} sampling, {cost.train_seconds:,.0f} learning)"
    )
    number = f" for {made.device.num_devices} GPUs" if made.device.num_devices > 1 else ""
    money = "" if cost.money is None else f", {cost.money:,.2f} at {made.device.hourly_price:g} an hour{number}"
    say(f"{episodes.steps} steps take {cost.hours:,.1f} hours{money}")
    say(f"confidence: {made.confidence}")
    say(f"rates: {made.device.source}")


def _calibrated(config: Config, model: ModelShape) -> Device:
    from sparring.models.precision import resolve_device
    from sparring.planning.calibration import calibrate

    is_cuda = resolve_device(config.model.device).startswith("cuda")
    unmeasured = this_machine(flops=1.0, bandwidth=1.0, is_cuda=is_cuda)
    settings = settings_of(config, unmeasured)
    return calibrate(
        model, settings, num_threads=config.run.num_threads or default_threads(), device=config.model.device
    )
