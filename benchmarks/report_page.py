"""Measures the report of a run with 10,000 episodes: its size, the time to write it, and the time to open it in a
browser.

All short episodes fit into the page, but only some of the long ones do. The time to open the page ends when the page's
script has run. It is not measured without Chromium.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import options, report
from sparring.report import write_report
from sparring.types import Message, Trajectory
from tests.report.browser import CHROMIUM, Page, browser
from tests.report.stored_run import StoredRun, episode

EPISODES_A_STEP, GROUP_SIZE = 200, 8
WORDS = (
    "find",
    "the",
    "order",
    "of",
    "seven",
    "and",
    "say",
    "where",
    "it",
    "is",
    "now",
    "<b>",
    "{}",
    '"key"',
    "not",
    "open",
)
SHAPES: Mapping[str, tuple[int, int]] = {"short": (2, 12), "long": (6, 150)}
"""Turns per episode and words per message."""
OPENINGS = 5
NUM_TOKENS_A_WORD = 1.5


def messages(rng: random.Random, turns: int, words: int) -> Iterator[Message]:
    yield {"role": "user", "content": " ".join(rng.choices(WORDS, k=words))}
    for turn in range(turns - 1):
        call = {
            "id": f"c{turn}",
            "type": "function",
            "function": {"name": "get", "arguments": json.dumps({"key": turn})},
        }
        yield {"role": "assistant", "content": " ".join(rng.choices(WORDS, k=words)), "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": f"c{turn}", "content": " ".join(rng.choices(WORDS, k=words))}
    yield {"role": "assistant", "content": " ".join(rng.choices(WORDS, k=words))}


def played(rng: random.Random, step: int, num: int, turns: int, words: int) -> list[Trajectory]:
    """Return episodes. Half of them are incorrect, and one in fifty of the incorrect ones is rewarded."""
    found = []
    num_tokens = int(words * NUM_TOKENS_A_WORD)
    for place in range(num):
        score = float(rng.random() < 0.5)
        one = episode(
            f"train/{step}/task-{step}-{place // GROUP_SIZE}/{place % GROUP_SIZE}.0",
            score=score,
            reward=max(score, float(rng.random() < 0.02)),
            messages=list(messages(rng, turns, words)),
        )
        for turn in one.turns:
            object.__setattr__(turn, "token_ids", tuple(rng.choices(range(5), k=num_tokens)))
            object.__setattr__(turn, "sampled_logprobs", tuple(-rng.expovariate(2.0) for _ in range(num_tokens)))
            object.__setattr__(turn, "versions", ((step, num_tokens),))
        found.append(one)
    return found


def measure(
    folder: Path, num: int, turns: int, words: int, page: Page | None, a_step: int = EPISODES_A_STEP
) -> dict[str, Any]:
    rng = random.Random(0)
    run = StoredRun(folder)
    for step in range(1, num // a_step + 1):
        metrics = {"rollout/reward/mean": rng.random(), "rollout/score/mean": rng.random(), "training/entropy": 1.0}
        run.log({step: metrics}, {f"train-{step}": played(rng, step, a_step, turns, words)})
    began = time.process_time()
    written = write_report(run.path)
    row: dict[str, Any] = {
        "episodes": num,
        "in the page": written.num_episodes,
        "MiB": written.num_bytes / 2**20,
        "processor seconds to write": time.process_time() - began,
    }
    if page is not None:
        row["seconds to open"] = median(page.open(written.path) for _ in range(OPENINGS))
        row["processor seconds to open"] = page.processor_seconds()
        row["seconds to filter"] = page.evaluate(
            "(() => { const began = performance.now(), task = document.getElementById('task'); task.value = 'task-1-';"
            " task.dispatchEvent(new Event('input')); return (performance.now() - began) / 1000; })()"
        )
        assert page.complaints == [], page.complaints
    return row


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    arguments = parser.parse_args()
    episodes, a_step = (32, 16) if arguments.smoke else (arguments.episodes, EPISODES_A_STEP)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def both(page: Page | None) -> None:
            for shape, (turns, words) in SHAPES.items():
                (folder / shape).mkdir()
                row = measure(folder / shape, episodes, turns, words, page, a_step)
                rows.append({"shape": f"{shape}: {turns} turns of {words} words", **row})

        if CHROMIUM is None:
            both(None)
        else:
            with browser(folder) as page:
                both(page)
    sides = {row["shape"]: row["in the page"] for row in rows}
    figures = {"mib": max(row["MiB"] for row in rows)}
    targets = {"mib": {"at_most": 15.0}}
    if CHROMIUM is not None:
        figures["seconds_to_open"] = max(row["seconds to open"] for row in rows)
        targets["seconds_to_open"] = {"at_most": 2.0}
    return report(
        "report_page", rows, figures=figures, targets=targets, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
