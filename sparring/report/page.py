"""The report page: what was trained, on which tasks, and whether and why the result can be trusted."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from sparring.config import resolved_toml
from sparring.diagnosis.next_command import next_command
from sparring.errors import UsageError
from sparring.evaluation.controls import Rise
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.statistics import Interval
from sparring.findings import Finding
from sparring.pages.chart import legend, svg
from sparring.pages.html import asset, data_element, data_text, document, finding_article, text
from sparring.report.cost import cost_section
from sparring.report.curves import charts, numbered_findings
from sparring.report.episodes import LOGPROB_UNITS, Episodes, episodes
from sparring.report.reading import LAST_STEPS, Record, read_run
from sparring.report.verdict import State, Verdict, build_verdict, worst_first
from sparring.runtime.redaction import mask_secrets
from sparring.types import Json, Outcome

SYMBOLS = {State.GOOD: "✓", State.UNKNOWN: "?", State.DOUBT: "!", State.BAD: "✗"}
MAX_TASKS = 1500
"""The largest number of tasks in the map of tasks."""
MAX_FINDINGS = 100
MOST_EPISODES = 8
"""The largest number of episodes that a finding lists."""
MAX_CUT_TURNS, MAX_OUT_OF_TURNS = 0.05, 0.10
"""The shares of training episodes above which a budget is too small."""

_PACKAGE = "sparring.report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The path of the written page, and its headline."""

    path: Path
    verdict: Verdict
    num_bytes: int
    num_episodes: int
    num_left_out: int

    def as_json(self) -> dict[str, Json]:
        """Return the content as JSON data."""
        return {
            "path": str(self.path),
            "bytes": self.num_bytes,
            "episodes": self.num_episodes,
            "left_out": self.num_left_out,
            "verdict": self.verdict.as_json(),
        }


def write_report(run: Path, path: Path | None = None, *, prices: Mapping[str, float] | None = None) -> Report:
    """Write the page to `path`, or by default to `report.html` in the run folder. `prices` are those of
    `metering.prices.PRICES`.

    Raises DataError if the folder is not a run or is damaged, and UsageError if the page cannot be written.
    """
    with _without_collection():
        record = read_run(run)
        played = episodes(record)
        verdict = build_verdict(record, seen_in_training=played.seen_in_training)
        content = page(record, played, verdict, prices or {}).encode()
    target = path or run / "report.html"
    try:
        target.write_bytes(content)
    except OSError as error:
        raise UsageError(f"--out {target} cannot be written: {error}; specify a file in a writable folder.") from error
    left_out = sum(played.left_out.values())
    return Report(
        path=target, verdict=verdict, num_bytes=len(content), num_episodes=len(played.shown), num_left_out=left_out
    )


@contextmanager
def _without_collection() -> Iterator[None]:
    """Pause the garbage collector's search for reference cycles. It would take a third of the time, and the episodes
    have no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def page(
    record: Record, played: Episodes, verdict: Verdict, prices: Mapping[str, float], *, is_live: bool = False
) -> str:
    """Return the whole HTML document. A live page asks its server for a newer version."""
    ids = {one["id"] for one in played.shown}
    sections = [
        _head(record),
        _verdict_section(verdict),
        '<nav aria-label="Parts"><a href="#diagnosis">Diagnosis</a> <a href="#findings">Findings</a> <a href="#tasks">Tasks</a> '
        '<a href="#curves">Curves</a> '
        '<a href="#budgets">Budgets</a> <a href="#cost">Tokens and cost</a> <a href="#episodes">Episodes</a> '
        '<a href="#settings">Settings</a></nav>',
        _diagnosis_section(record, ids),
        _findings_section(record, ids),
        _tasks_section(verdict),
        _curves_section(record),
        _budgets_section(record),
        cost_section(record, prices),
        _episodes_section(played),
        _settings_section(record),
        data_element("data", _data(played, verdict)),
    ]
    whole = document(
        f"{record.name} · sparring report",
        "\n".join(sections),
        styles=[asset(_PACKAGE, "report.css")],
        script="\n".join(asset(_PACKAGE, name) for name in ("reader.js", *(["live.js"] if is_live else []))),
        asks_its_server=is_live,
    )
    # The page must not pass on a secret that an agent's tool exposed.
    return mask_secrets(whole, text, _in_data)


def _in_data(value: str) -> str:
    return data_text(value)[1:-1]


def _data(played: Episodes, verdict: Verdict) -> Json:
    """Return the data for the script that shows episodes. `policies` are the two policies that the verdict compares,
    named as in episodes."""
    policies = [one.label for one in (verdict.before, verdict.after) if one is not None]
    return {
        "episodes": played.shown,
        "vocabulary": played.vocabulary,
        "units": LOGPROB_UNITS,
        "policies": policies,
    }


def _head(record: Record) -> str:
    facts = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in _facts(record))
    return f'<header><h1>{text(record.name)}</h1><dl class="facts">{facts}</dl></header>'


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the facts about the run, such as its model, environment, reward and training."""
    config = record.config
    if config.is_trainable:
        weights = f"LoRA rank {config.model.lora_rank}" if config.model.trained_weights == "lora" else "all weights"
        yield "Model", f"{config.model.name}, {weights}"
    else:
        yield "Model", f"{config.engine.type}: {config.engine.model or config.engine.script}, not trained"
    yield "Environment", config.environment.target or f"the agent's own environment ({config.agent.kind})"
    yield "Tasks", config.data.train or "none"
    yield "Reward", config.reward.reward or "reported by the agent"
    yield "Scorer", config.reward.scorer or "none"
    if config.is_trainable:
        algorithm = config.algorithm
        status = record.status.get("status", "unknown")
        started = f"warm start of {config.warm_start.steps} steps, then " if config.warm_start is not None else ""
        batch = f"{config.batch.global_batch_size} tasks x {config.batch.group_size} episodes"
        yield (
            "Training",
            (
                f"{started}{record.last_step} of {config.schedule.max_steps} steps ({status}), {batch} each; "
                f"{algorithm.advantage_method}, {algorithm.loss_fn}, learning rate {config.optimizer.learning_rate:g}"
            ),
        )
    versions = record.manifest.get("versions", {})
    created = record.manifest.get("created")
    when = "" if created is None else f"{datetime.fromtimestamp(created, UTC):%Y-%m-%d %H:%M} UTC, "
    yield "Created", f"{when}Sparring {versions.get('sparring', '?')}, seed {config.run.seed}"


def _verdict_section(verdict: Verdict) -> str:
    looks = "\n".join(
        f'<li class="{look.state.value}"><span class="symbol" aria-hidden="true">{SYMBOLS[look.state]}</span>'
        f"<span><b>{text(look.name)}</b> <small>{look.state.value}</small><br>{text(look.text)}</span></li>"
        for look in worst_first(verdict.looks)
    )
    known = State.UNKNOWN if verdict.rise is Rise.UNKNOWN else verdict.trust
    return f"""<section class="verdict {known.value}" aria-labelledby="headline">
<h2 id="headline">{text(verdict.headline)}</h2>
<div class="sides">
<div>{_rise(verdict)}</div>
<div><h3>Can it be trusted?</h3><ul class="looks">{looks}</ul></div>
</div>
</section>"""


def _rise(verdict: Verdict) -> str:
    kind = "Held-out success" if verdict.is_held_out else "Validation success"
    controls = [one.before for one in reversed(verdict.claim.against)]
    rows = [one for one in (*controls, verdict.after) if one is not None]
    if not rows:
        return (
            f"<h3>{kind}</h3><p>Nothing was evaluated: <code>sparring eval RUN</code> runs the held-out evaluation.</p>"
        )
    bars = "".join(_bar(one.name, one.success) for one in rows)
    details = "".join(
        f"<li>{text(one.name)}: {_percent(fmean(one.completions))} finished by themselves, reward "
        f"{fmean(one.rewards):.3g}, score {one.score.mean:.3g}</li>"
        for one in rows
    )
    details = f'<ul class="faint plain">{details}</ul>'
    title = (
        f"<h3>{kind}, from the strongest control evaluated to the tuned policy</h3>" if controls else f"<h3>{kind}</h3>"
    )
    return f'{title}{_difference(verdict, rows)}<div class="bars">{bars}</div>{details}'


def _difference(verdict: Verdict, rows: Sequence[Evaluation]) -> str:
    """Return the main number in large type, with its uncertainty below."""
    after, comparison = rows[-1], verdict.comparison
    if verdict.before is None or comparison is None:
        big = f'<p class="big">{_percent(after.success.mean)}</p>'
        return f"{big}<p>{text(after.name)}, {text(after.setting)}; not compared with another policy.</p>"
    points, low, high = (100 * value for value in astuple(comparison.difference))
    fixed, broken = len(comparison.fixed), len(comparison.broken)
    num = fixed + broken + len(comparison.unchanged)
    return (
        f'<p class="big">{_percent(verdict.before.success.mean)} <span aria-label="to">→</span> '
        f"{_percent(after.success.mean)}</p>"
        f"<p><b>{points:+.1f} points</b> (95 %: {low:+.1f} to {high:+.1f}; p = {comparison.p_value:.2g}), "
        f"{text(verdict.before.name)} to {text(after.name)}, {text(after.setting)}, on the same {num} tasks: {fixed} got better, "
        f"{broken} got worse.</p>"
    )


def _bar(name: str, success: Interval) -> str:
    """Draw a mean and its interval between 0 and 1."""
    low, mean, high = (8 + 284 * value for value in (success.low, success.mean, success.high))
    label = f"{name}: {_percent(success.mean)}, 95 % interval {_percent(success.low)} to {_percent(success.high)}"
    return (
        f'<svg viewBox="0 0 300 34" role="img" aria-label="{text(label)}"><text x="8" y="11">{text(name)}</text>'
        '<line class="grid" x1="8" x2="292" y1="24" y2="24"/>'
        f'<line class="interval" x1="{low:.1f}" x2="{high:.1f}" y1="24" y2="24"/>'
        f'<circle class="mean" cx="{mean:.1f}" cy="24" r="5"/></svg>'
    )


def _diagnosis_section(record: Record, ids: set[str]) -> str:
    """Return the section about what to change first. The section is empty if nothing was trained."""
    found = record.diagnosis
    if found is None:
        return ""
    # The headline is about the first finding, which may be one of a detector.
    shown = [one for one in found.findings if one is record.first or one in record.symptoms]
    articles = [finding_article(finding, more=_links(record, finding, ids)) for finding in shown]
    return f'<section id="diagnosis"><h2>Diagnosis</h2><p>{text(found.headline)}</p>{"".join(articles)}</section>'


def _links(record: Record, finding: Finding, ids: set[str]) -> str:
    links = " ".join(_episode_link(one, ids) for one in finding.trajectories[:MOST_EPISODES])
    shown = ""
    if finding.settings:
        command = next_command(record.path, record.config, record.metrics, finding)
        shown = f"<p><code>{text(command)}</code></p>"
    return shown + (f'<p class="faint">Episodes: {links}.</p>\n' if links else "")


def _findings_section(record: Record, ids: set[str]) -> str:
    labels = numbered_findings(record)
    order = ("error", "warning", "note")
    places = sorted(range(len(record.findings)), key=lambda place: order.index(record.findings[place].severity.value))
    articles = []
    for place in places[:MAX_FINDINGS]:
        finding = record.findings[place]
        links = " ".join(_episode_link(one, ids) for one in finding.trajectories[:MOST_EPISODES])
        label = (
            f'<p class="faint">{labels[place]} in the curves' if place in labels else '<p class="faint">Before training'
        )
        past = "" if record.holds(finding) else ", and no longer applies"
        articles.append(finding_article(finding, more=f"{label}{past}{'. Episodes: ' + links if links else '.'}</p>\n"))
    left = len(places) - len(articles)
    more = f"<p>{left} more are in findings.jsonl.</p>" if left else ""
    return f'<section id="findings"><h2>Findings</h2>{"".join(articles) or "<p>Nothing was found.</p>"}{more}</section>'


def _episode_link(trajectory_id: str, ids: set[str]) -> str:
    if trajectory_id not in ids:
        return f"<span>{text(trajectory_id)}</span>"
    return f'<button type="button" class="link" data-episode="{text(trajectory_id)}">{text(trajectory_id)}</button>'


def _tasks_section(verdict: Verdict) -> str:
    head = '<section id="tasks"><h2>Tasks, before and after</h2>'
    before, after, comparison = verdict.before, verdict.after, verdict.comparison
    if before is None or after is None or comparison is None:
        return f"{head}<p>This map needs two policies: <code>sparring eval RUN</code> evaluates them.</p></section>"
    rates = [dict(zip(one.task_ids, map(float, one.rates), strict=True)) for one in (before, after)]
    kinds = (
        ("broken", "−", "got worse", comparison.broken),
        ("fixed", "+", "got better", comparison.fixed),
        ("failing", "·", "not right before or after", [i for i in comparison.unchanged if rates[1][i] < 1]),
        ("solved", "✓", "right before and after", [i for i in comparison.unchanged if rates[1][i] >= 1]),
    )
    cells = [
        f'<button type="button" class="task {kind}" data-task="{text(i)}" tabindex="-1" '
        f'title="{text(i)}: {rates[0][i]:.3g} to {rates[1][i]:.3g}">{symbol}</button>'
        for kind, symbol, _, task_ids in kinds
        for i in task_ids
    ]
    keys = " ".join(
        f'<span class="key"><span class="task {kind}" aria-hidden="true">{symbol}</span> {len(task_ids)} {meaning}</span>'
        for kind, symbol, meaning, task_ids in kinds
    )
    left = len(cells) - MAX_TASKS
    more = (
        f"<p>{left} more tasks are in {text(verdict.after.name if verdict.after else '')}'s evaluation file.</p>"
        if left > 0
        else ""
    )
    return f"""{head}
<p>{text(before.name)} to {text(after.name)}, {text(after.setting)}. Select a task to see its episodes.</p>
<p class="keys">{keys}</p>
<div class="map" role="group" aria-label="Tasks">{"".join(cells[:MAX_TASKS])}</div>{more}</section>"""


def _curves_section(record: Record) -> str:
    drawn = "\n".join(
        f"<figure><figcaption><b>{text(chart.title)}</b><br>{legend(chart)}</figcaption>{svg(chart)}"
        f'<p class="faint">{text(chart.meaning)}</p></figure>'
        for chart in charts(record)
    )
    marks = "<p>F1, F2, ... mark findings; R marks a resumed run.</p>" if drawn else "<p>No step was logged.</p>"
    return f'<section id="curves"><h2>Curves</h2>{marks}<div class="charts">{drawn}</div></section>'


def _budgets_section(record: Record) -> str:
    rows = "".join(
        f'<tr><td>{text(name)}</td><td class="number">{text(setting)}</td><td>{text(used)}</td><td class="{state.value}">'
        f'<span class="symbol">{SYMBOLS[state]}</span> {text(rule)}</td></tr>'
        for name, setting, used, state, rule in _budgets(record)
    )
    return f"""<section id="budgets"><h2>Budgets</h2>
<p class="faint">Training episodes, averaged over the last {LAST_STEPS} steps.</p>
<table><tr><th>budget</th><th class="number">setting</th><th>used</th><th>rule</th></tr>{rows}</table></section>"""


def _budgets(record: Record) -> Iterator[tuple[str, str, str, State, str]]:
    config, late = record.config, record.late
    out, turns = late(f"rollout/outcome/{Outcome.MAX_TURNS}"), late("rollout/turns/mean")
    used = "not measured" if turns is None else f"{turns:.1f} on average, {_percent(out or 0)} of episodes ran out"
    limit = config.agent.max_turns if config.agent.is_foreign else config.environment.max_turns
    yield "Turns", _setting(limit), used, _below(out, MAX_OUT_OF_TURNS), "below 10 % run out"
    cut, longest = late("rollout/truncated_turns"), late("rollout/tokens/response_max")
    used = "not measured" if longest is None else f"the longest has {longest:.0f}, {_percent(cut or 0)} of turns cut"
    yield (
        "Tokens per turn",
        _setting(config.sampling.sampling_max_tokens),
        used,
        _below(cut, MAX_CUT_TURNS),
        "below 5 % cut",
    )
    full = late(f"rollout/outcome/{Outcome.MAX_TOKENS}")
    used = "not measured" if full is None else f"{_percent(full)} of episodes ran out"
    limit = config.rollout.rollout_max_tokens or config.model.max_sequence_length
    yield "Tokens per episode", _setting(limit), used, _below(full, MAX_CUT_TURNS), "below 5 % run out"
    slow = late(f"rollout/outcome/{Outcome.POLICY_TIMEOUT}")
    used = "not measured" if slow is None else f"{_percent(slow)} of episodes ran out"
    yield (
        "Seconds per episode",
        _setting(config.rollout.rollout_timeout),
        used,
        _below(slow, 0.01),
        "below 1 % run out",
    )


def _setting(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _below(share: float | None, most: float) -> State:
    return State.UNKNOWN if share is None else State.GOOD if share < most else State.DOUBT


def _episodes_section(played: Episodes) -> str:
    lines = [
        f"This page contains {len(played.shown)} of {played.num_played} episodes, disagreements of reward and scorer first."
    ]
    if played.left_out:
        left = ", ".join(f"{count} {what}" for what, count in played.left_out.items())
        lines.append(f"Left out because of size: {left}; they are in the run's folder.")
    if played.without_tokens:
        lines.append(
            f"{played.without_tokens} are shown without tokens, which did not fit or whose texts the run did not store."
        )
    if played.why_no_advantages is not None:
        lines.append(f"Advantages are not shown: {text(played.why_no_advantages)}.")
    return f"""<section id="episodes"><h2>Episodes</h2>
<p>{" ".join(lines)}</p>
<noscript><p>Reading them here needs JavaScript; they are also in <code>trajectories/</code>.</p></noscript>
<div class="filters" role="search" aria-label="Which episodes">
<label>Show <select id="which"></select></label>
<label>Ended <select id="outcome"></select></label>
<label>Split <select id="where"></select></label>
<label>Task <input id="task" type="search" autocomplete="off" spellcheck="false"></label>
<label>Color tokens by <select id="coloring"></select></label>
</div>
<p id="count" role="status"></p>
<p id="scale" class="faint"></p>
<div class="reader"><div><ol id="list" aria-label="Episodes"></ol><button type="button" id="more">Show more</button></div>
<div id="panes" tabindex="-1" aria-label="The chosen episodes"></div></div></section>"""


def _settings_section(record: Record) -> str:
    manifest = {key: record.manifest.get(key) for key in ("recipe", "seed", "versions", "hardware", "sha256")}
    made_of = json.dumps(manifest, indent=1, ensure_ascii=False)
    return f"""<section id="settings"><h2>Settings</h2>
<details><summary>Recipe with every change applied</summary><pre>{text(resolved_toml(record.config))}</pre></details>
<details><summary>Versions, hardware, contents</summary><pre>{text(made_of)}</pre></details>
</section>"""


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
