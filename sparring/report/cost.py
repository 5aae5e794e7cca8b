"""The cost section of a report: tokens by purpose, time by activity, and money at the user's prices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparring.metering.prices import ENDPOINT_PRICES, PRICES, cost
from sparring.metering.usage import EndpointUsage, read_usage
from sparring.pages.html import text
from sparring.report.reading import Record


def cost_section(record: Record, prices: Mapping[str, float]) -> str:
    """Return tokens, hours and cost as markup. If `prices` is empty, use those of the recipe."""
    prices = prices or record.config.tracking.prices
    quantities = _quantities(record)
    rows = "".join(
        f'<tr><td>{text(what)}</td><td class="number">{amount:,.{0 if unit == "tokens" else 3}f}</td><td>{unit}</td>'
        f'<td class="number">{_cost(key, amount, prices.get(key))}</td></tr>'
        for key, what, amount, unit in quantities
    ) + "".join(
        f'<tr><td>{text(what)}</td><td class="number">{ratio:.2f}</td><td>per distinct token</td><td></td></tr>'
        for what, ratio in _computed_per_distinct(record)
    )
    endpoints = read_usage(record.path)
    total = sum(cost(key, amount, prices[key]) for key, _, amount, _ in quantities if key in prices)
    total += sum(one.cost(prices) or 0.0 for one in endpoints)
    asked = "".join(_endpoint(one, prices) for one in endpoints)
    last = f'<tr><td>together</td><td></td><td></td><td class="number"><b>{total:.4g}</b></td></tr>' if prices else ""
    places = "<code>--price</code> or <code>tracking.prices</code>"
    kinds = ", ".join((*PRICES, *(f"MODEL:{kind}" for kind in ENDPOINT_PRICES if endpoints)))
    note = "" if prices else f"<p class='faint'>Set {places} to show the cost: {kinds}.</p>"
    times = "".join(
        f'<tr><td>{text(what)}</td><td class="number">{seconds:,.1f}</td><td class="number">{share:.0%}</td></tr>'
        for what, seconds, share in _times(record)
    )
    return f"""<section id="cost"><h2>Tokens and cost</h2>
<div class="sides">
<div><table><tr><th>of the RL steps</th><th class="number">amount</th><th></th><th class="number">cost</th></tr>
{rows}{asked}{last}</table>{note}</div>
<div><table><tr><th>time</th><th class="number">seconds</th><th class="number">share</th></tr>
{times}</table></div>
</div></section>"""


def _endpoint(one: EndpointUsage, prices: Mapping[str, float]) -> str:
    """Return the table rows about one endpoint's usage. Numbers that the endpoint did not report are shown as
    unknown."""
    failed = f" ({one.failed} failed)" if one.failed else ""
    missing = f", {one.unreported} answers without a count" if one.unreported and one.read is not None else ""
    price = one.cost(prices)
    cells = [
        (
            f"requests to {one.endpoint}{failed}",
            f"{one.requests:,}",
            "requests",
            "" if price is None else f"{price:.4g}",
        )
    ]
    trained = () if one.trained is None else (("trained", one.trained),)
    for what, amount in (("read", one.read), ("sampled", one.sampled), *trained):
        cells.append(
            (f"{what} by {one.endpoint}{missing}", "unknown" if amount is None else f"{amount:,}", "tokens", "")
        )
    return "".join(
        f'<tr><td>{text(what)}</td><td class="number">{amount}</td><td>{unit}</td><td class="number">{paid}</td></tr>'
        for what, amount, unit, paid in cells
    )


def _quantities(record: Record) -> list[tuple[str, str, float, str]]:
    sampled = record.total("rollout/tokens/sampled")
    read = max(0.0, record.total("rollout/tokens/computed") - sampled)
    seconds = record.total("timing_s/step") + record.total("timing_s/eval")
    return [
        ("prefill", "read as context for sampling", read, "tokens"),
        ("sample", "sampled", sampled, "tokens"),
        ("train", "computed by the learner", record.total("training/tokens"), "tokens"),
        ("hour", "steps and validations", seconds / 3600, "hours"),
    ]


def _computed_per_distinct(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the number of computed tokens per distinct token, in rollouts and in training. Older runs do not have these
    metrics."""
    for what, computed, distinct in (
        ("computed in rollouts", "rollout/tokens/computed", "rollout/tokens/distinct"),
        ("computed in training", "training/tokens", "training/distinct_tokens"),
    ):
        if total := record.total(distinct):
            yield what, record.total(computed) / total


def _times(record: Record) -> Iterator[tuple[str, float, float]]:
    names = {
        "waiting for episodes": "rollout",
        "advantages": "advantages",
        "learning": "training",
        "handing over weights": "policy_update",
        "validation": "eval",
    }
    seconds = {what: record.total(f"timing_s/{name}") for what, name in names.items()}
    whole = sum(seconds.values()) or 1.0
    for what, spent in seconds.items():
        yield what, spent, spent / whole


def _cost(key: str, amount: float, price: float | None) -> str:
    return "" if price is None else f"{cost(key, amount, price):.4g}"
