"""Measures the processor time that the controlling process needs for a turn that vLLM servers sample.

The controller runs episodes of pointer_chase with everything that training needs: rendering, sessions, tools, rewards and
a ledger on disk. The servers are processes that answer with the routes of vLLM and a constant tool call after 50 ms. With
two servers and 512 sessions, a turn must take at most 1.3 times the processor time that it takes with one server and 32
sessions. The two sides alternate, and figures are medians over the rounds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import options, report

RECIPE = Path(__file__).parents[1] / "recipes" / "pointer_chase"
LATENCY = 0.05
MAX_TOKENS = 256
SIDES = {"1 server, 32 sessions": (1, 32), "2 servers, 512 sessions": (2, 512)}
SMOKE = {"1 server, 32 sessions": (1, 4), "2 servers, 512 sessions": (2, 8)}
LARGEST_RATIO = 1.3


def encode_turn() -> list[int]:
    """Return the tokens of a turn that calls the tool."""
    from recipes.pointer_chase.model import build
    from sparring.chat import create_chat

    _, tokenizer = build()
    call = tokenizer.encode('<tool_call>{"name":"get","arguments":{"key":"a"}}</tool_call>', add_special_tokens=False)
    return [*call, min(create_chat(tokenizer, "model:build").stop_ids)]


def serve(pipe: Connection, tokens: list[int], latency: float) -> None:
    """Serve the routes of vLLM that the engine uses. Every turn has the same tokens, and takes `latency` seconds."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from sparring.web.listener import Listener

    async def models(_: Request) -> Response:
        return JSONResponse({"data": [{"id": "base", "parent": None, "max_model_len": MAX_TOKENS}]})

    async def change_adapter(_: Request) -> Response:
        return Response()

    async def generate(request: Request) -> Response:
        sampling = (await request.json())["sampling_params"]
        turn = tokens if sampling["max_tokens"] > 1 else tokens[:1]
        await asyncio.sleep(latency)
        # At a small temperature, the first token of the check of the server's settings is nearly certain.
        logprob = -0.001 if sampling["temperature"] < 0.1 else -0.5
        content = [{"token_id": one, "logprob": logprob, "top_logprobs": []} for one in turn]
        choice = {"token_ids": turn, "logprobs": {"content": content}, "finish_reason": "stop"}
        return JSONResponse({"choices": [choice], "usage": None})

    async def run() -> None:
        app = Starlette(
            routes=[
                Route("/v1/models", models),
                Route("/v1/load_lora_adapter", change_adapter, methods=["POST"]),
                Route("/v1/unload_lora_adapter", change_adapter, methods=["POST"]),
                Route("/inference/v1/generate", generate, methods=["POST"]),
            ]
        )
        listener = Listener(app, "127.0.0.1", 0)
        await listener.start()
        pipe.send(listener.base_url)
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def servers(number: int, tokens: list[int], latency: float = LATENCY) -> Iterator[list[str]]:
    """Start servers in separate processes; yields their addresses."""
    context = multiprocessing.get_context("spawn")
    processes, urls = [], []
    try:
        for _ in range(number):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=serve, args=(theirs, tokens, latency), daemon=True))
            processes[-1].start()
            urls.append(ours.recv())
        yield urls
    finally:
        for one in processes:
            one.kill()


def control(urls: list[str], num_sessions: int, num_turns: int) -> dict[str, float]:
    """Run episodes until `num_turns` turns have been sampled, and return the time of a turn."""
    from dataclasses import replace

    from sparring.assembly import close, load_rollout_parts
    from sparring.config import load_config
    from sparring.ledger import Ledger
    from sparring.rollouts import GroupPlan
    from sparring.types import Sampling

    overrides = (
        "model.trained_weights=lora",
        "engine.type=vllm",
        f"engine.base_urls={urls}".replace("'", '"'),
        f"engine.max_running={num_sessions}",
        f"rollout.rollout_max_concurrency={num_sessions}",
    )
    config = load_config(RECIPE / "recipe.toml", list(overrides))

    async def run(folder: Path) -> dict[str, float]:
        parts = load_rollout_parts(config, RECIPE, Ledger(folder / "ledger.sqlite"), folder=folder)
        tasks = parts.tasks.train
        sampling = Sampling(max_tokens=config.sampling.sampling_max_tokens)

        async def play(first: int, number: int) -> int:
            groups = await asyncio.gather(
                *(
                    parts.collector.play_group(
                        GroupPlan(
                            task=replace(tasks[position % len(tasks)], id=f"task-{position}"),
                            position=position,
                            group_size=8,
                            sampling=sampling,
                        )
                    )
                    for position in range(first, first + number)
                )
            )
            return sum(len(one.turns) for group in groups for one in group.trajectories)

        num_groups = max(1, num_turns // 8 // config.environment.max_turns)
        num_first = max(1, num_sessions // 8)
        await play(0, num_first)  # connections and caches
        processor, wall = time.process_time(), time.perf_counter()
        turns = await play(num_first, num_groups)
        found = {
            "turns": turns,
            "processor, ms": 1000 * (time.process_time() - processor) / turns,
            "turns/s": turns / (time.perf_counter() - wall),
        }
        await close(parts)
        return found

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder)))


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the figures are medians")
    parser.add_argument("--turns", type=int, default=10_240, help="turns that each side samples in a round")
    arguments = parser.parse_args()
    rounds, turns = (1, 80) if arguments.smoke else (arguments.rounds, arguments.turns)
    sides = SMOKE if arguments.smoke else SIDES
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        tokens = pool.apply(encode_turn)
    for index in range(rounds):
        for name in list(sides)[:: 1 if index % 2 == 0 else -1]:
            number, sessions = sides[name]
            with servers(number, tokens) as urls, multiprocessing.get_context("spawn").Pool(1) as pool:
                found[name].append(pool.apply(control, (urls, sessions, turns)))
    rows: list[dict[str, Any]] = [
        {"": name, **{key: median(one[key] for one in runs) for key in runs[0]}} for name, runs in found.items()
    ]
    few, many = ([one["processor, ms"] for one in found[name]] for name in sides)
    figures = {
        "processor time of a turn, many over few sessions": median(b / a for a, b in zip(few, many, strict=True)),
        "processor time of a turn with many sessions, ms": median(many),
    }
    return report(
        "vllm_controller",
        rows,
        figures=figures,
        targets={"processor time of a turn, many over few sessions": {"at_most": LARGEST_RATIO}},
        path=arguments.json,
        sides={name: sum(one["turns"] for one in runs) for name, runs in found.items()},
        smoke=arguments.smoke,
    )


if __name__ == "__main__":
    sys.exit(main())
