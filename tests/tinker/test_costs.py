"""What a run on a service costs: a real run against `sparring serve --tinker`, counted by hand from its ledger."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.config import validate
from sparring.errors import ConfigError
from sparring.ledger import Ledger
from sparring.metering.usage import EndpointUsage, endpoint_name, read_usage
from sparring.report import write_report
from sparring.trainer import MultiTurnRLTrainer, TrainResult
from tests.tinker.servers import KEY, ROOT, Server
from tests.tinker.whole_runs import LEAVES_SOCKETS, build_settings

RECIPE = ROOT / "recipes" / "pointer_chase"
PRICES = {"read": 1.0, "sample": 10.0, "train": 4.0}
"""Prices per million tokens."""
PROBE_TOKENS = 64
STEP_TOKENS = 14
"""The trained tokens of one step of the measurement at the start: a pass over 7 targets, and scoring them."""
MEASURED_TOKENS = (
    7  # the log-probabilities before the first step
    + 28  # a row of 7 targets next to one of 21, scored
    + 14 + 14 + (14 + 7) + (28 + 7) + (14 + 7) + 14  # passes: w, 2w, twice, with zeros, with a tail, -w
    + (14 + 7) + 14  # with a tail of tiny weights, 3w
    + 21 + 21 + 21 + 35 + 63  # as planned, the rows scored first: w, 2w, -w, twice, with zeros
    + 14  # with a clip
    + 21  # a step between storing weights and sampling with them
    + 14  # the norm for -w
    + 14 + 14  # importance_sampling, ppo
)  # fmt: skip
"""The trained tokens of the measurement, without those for finding the size of its steps."""


def train(server: Server, folder: Path, *more: str) -> TrainResult:
    recipe = folder / "recipe"
    if not recipe.exists():
        shutil.copytree(RECIPE, recipe, ignore=shutil.ignore_patterns("__pycache__"))
        before, _, after = (recipe / "recipe.toml").read_text("utf-8").partition("[warm_start]")
        prices = "".join(f'"{server.model}:{kind}" = {price}\n' for kind, price in PRICES.items())
        content = f"{before}{after[after.index('[batch]') :]}\n[tracking.prices]\n{prices}"
        (recipe / "recipe.toml").write_text(content, "utf-8")
    settings = build_settings(server, folder, "environment.max_turns=1", "schedule.save_every=0", *more)
    with MultiTurnRLTrainer(
        recipe, overrides=[one for one in settings if "warm_start" not in one], check=False, quiet=True
    ) as trainer:
        result = trainer.train()
    assert result is not None
    return result


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_TEST_TINKER_KEY", f"tml-{KEY}")


def usage(run: Path, during: str | None = None) -> EndpointUsage:
    (found,) = read_usage(run, during=during)
    return found


def cost(found: EndpointUsage) -> float:
    assert found.read is not None and found.sampled is not None and found.trained is not None  # noqa: PT018
    return (found.read * PRICES["read"] + found.sampled * PRICES["sample"] + found.trained * PRICES["train"]) / 1e6


@LEAVES_SOCKETS
def test_the_metered_tokens_and_their_cost_are_those_counted_by_hand(own_server: Server, tmp_path: Path) -> None:
    run = train(own_server, tmp_path, "run.name=counted", "schedule.max_steps=2").run
    with Ledger(run / "ledger.sqlite") as ledger:
        turns = {one.id: ledger.load_turns(one.id) for one in ledger.rollouts()}
        consumed = ledger.consumed()
    assert all(len(one) == 1 for one in turns.values())
    lengths = {name: (len(one[0].prompt_ids), len(one[0].token_ids)) for name, one in turns.items()}
    # Both steps train 2 groups of 4 episodes. Each episode is one sequence, of which a pass reads all ids but the last: once
    # for the log-probabilities, and once for the gradient.
    rows = [sum(lengths[name]) - 1 for names in consumed.values() for name in names]
    assert len(rows) == 2 * 2 * 4
    # The check after each step scores the beginning of the first sequence on both sides.
    beginning = min(PROBE_TOKENS, sum(lengths[consumed[1][0]]))
    found = usage(run, during="training")
    assert found.trained == 2 * sum(rows) + 2 * (beginning - 1)
    assert found.read == sum(prompt for prompt, _ in lengths.values()) + 2 * beginning
    assert found.sampled == sum(sampled for _, sampled in lengths.values())
    assert found.failed == found.unreported == 0

    loading = usage(run, during="loading")
    assert loading.trained is not None
    sizing, rest = divmod(loading.trained - MEASURED_TOKENS, STEP_TOKENS)
    assert rest == 0
    assert 2 <= sizing <= 16
    # One prompt of 8 ids, to which one token is sampled.
    assert (loading.read, loading.sampled) == (8, 1)

    whole, prices = usage(run), {f"{own_server.model}:{kind}": price for kind, price in PRICES.items()}
    assert whole.endpoint == endpoint_name(str(own_server.model), own_server.url)
    assert whole.cost(prices) == pytest.approx(cost(found) + cost(loading))
    assert f"{whole.trained:,} trained, cost {whole.cost(prices):.4g}" in whole.summary(prices)
    assert f"{whole.trained:,}" in write_report(run, prices=prices).path.read_text("utf-8")
    shown = CliRunner().invoke(app, ["runs", "show", str(run), "--json"])
    (line,) = json.loads(shown.stdout)["endpoints"]
    assert (line["trained"], line["cost"]) == (whole.trained, pytest.approx(whole.cost(prices)))


@LEAVES_SOCKETS
def test_a_run_stops_at_its_limit_of_money_without_a_lost_step(own_server: Server, tmp_path: Path) -> None:
    first = train(own_server, tmp_path, "run.name=first", "schedule.max_steps=1").run
    before, step = cost(usage(first, during="loading")), cost(usage(first, during="training"))
    # Steps differ by a few sampled tokens. After two, a third would cost more than half a step too much.
    limit = before + 2.5 * step
    stopped = train(own_server, tmp_path, "run.name=stopped", "schedule.max_steps=9", f"limits.max_cost={limit:.9f}")
    assert (stopped.step, stopped.status) == (2, "completed")
    spent = cost(usage(stopped.run))
    assert limit - step < spent <= limit
    assert (stopped.run / "checkpoints/000002/tinker.json").is_file()
    with Ledger(stopped.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
        assert sorted(ledger.consumed()) == [1, 2]


def test_the_prices_of_a_service_are_those_of_an_endpoint() -> None:
    recipe: dict[str, Any] = {
        "environment": {"target": "a:B"},
        "reward": {"reward": "a:b"},
        "engine": {"type": "tinker"},
        "learner": {"type": "tinker", "base_url": "http://a", "model": "org/m"},
        "model": {"name": "m", "trained_weights": "lora"},
    }
    for name, kind in (("prefill", "read"), ("sample", "sample"), ("train", "train")):
        with pytest.raises(ConfigError, match=rf'tracking\.prices\.{name}.*set tracking\.prices\."org/m:{kind}"'):
            validate(recipe, [f"tracking.prices.{name}=1"])
    config = validate(
        {**recipe, "tracking": {"prices": {"org/m:train": 1.0, "hour": 1.0}}, "limits": {"max_cost": 2.0}}
    )
    assert config.limits.max_cost == 2.0


@pytest.mark.parametrize(
    ("prices", "is_refused"),
    [
        ({"org/M:train": 1.0}, True),
        ({"org/m:read": 1.0, "org/m:sample": 1.0}, True),
        ({"org/m@a:train": 1.0}, False),
        ({"org/m:train": 0.0, "judge:read": 1.0}, False),
        ({"hour": 1.0}, False),
    ],
)
def test_a_limit_of_money_needs_a_price_of_training(prices: dict[str, float], is_refused: bool) -> None:
    recipe: dict[str, Any] = {
        "environment": {"target": "a:B"},
        "reward": {"reward": "a:b"},
        "engine": {"type": "tinker"},
        "learner": {"type": "tinker", "base_url": "http://a", "model": "org/m"},
        "model": {"name": "m", "trained_weights": "lora"},
        "tracking": {"prices": prices},
        "limits": {"max_cost": 1.0},
    }
    if is_refused:
        with pytest.raises(ConfigError, match=r'limits\.max_cost.*would cost 0.*set tracking\.prices\."org/m:train"'):
            validate(recipe)
    else:
        assert validate(recipe).limits.max_cost == 1.0
