"""Measures `sparring serve` under load: chat requests with tool calls, compared with the vLLM server itself.

Clients hold conversations with the policy of a short run of pointer_chase. Each request has a tool. A client runs the
tool call that comes back and sends its result, or asks the next question after an answer. Requests are sent with the
`openai` client, whole and as streams, at several numbers of concurrent conversations. There are three sides: `sparring
serve --engine vllm`, the vLLM server itself, and `sparring serve --engine torch`. The vLLM server itself gets the same
prompts as token ids (`/inference/v1/generate`) and the same adapter. It needs no chat format, no parser of tool calls
and no second hop. On two cores, the rate of vLLM's CPU build varies by a factor of four between equal loads, so the ratio
of the two sides has no target there.

The sides alternate. Rates are medians over the rounds, and the times of turns come from all rounds together. Turns are
greedy, so that all rounds have the same conversations, and their prompts are in the server's cache after a first round
that is not measured. Server, `sparring serve` and clients share the cores of one machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from benchmarks.report import needs, options, report

RECIPE = Path(__file__).parents[1] / "recipes" / "pointer_chase"
SETTINGS = (
    "model.name=model:build_wide",
    "model.trained_weights=lora",
    "model.lora_rank=8",
    "model.lora_alpha=16",
    "warm_start.num_demonstrations=1280",
    "warm_start.steps=60",
    "batch.global_batch_size=2",
    "batch.group_size=2",
    "schedule.max_steps=1",
    "schedule.val_every=1",
    "schedule.save_every=1",
    "evaluation.val_num_tasks=1",
    "evaluation.allow_zero_baseline=true",
    "run.name=chase",
)
MAX_TOKENS, NUM_TURNS = 24, 4
"""Tokens of a turn, and turns of a conversation. Four turns stay below the 256 tokens that the recipe's model may read."""
CONVERSATIONS = (1, 8, 32)
FEWEST = 8
"""The smallest number of conversations that a measurement has. It has at least two for each concurrent one."""
VLLM, DIRECT, TORCH = "sparring serve, vLLM", "the vLLM server itself", "sparring serve, torch"
KINDS: Mapping[str, bool] = {"whole": False, "stream": True}

Prompts: TypeAlias = Mapping[int, Sequence[Sequence[int]]]
"""The token ids of the prompts of each conversation."""


@dataclass(slots=True)
class Found:
    """What clients saw in one measurement."""

    seconds: float = 0.0
    turns: list[float] = field(default_factory=list[float])
    """The seconds of each turn."""
    first: list[float] = field(default_factory=list[float])
    """The seconds until the first event of each streamed turn, which is sent when its first token has been sampled."""
    num_tokens: int = 0
    num_calls: int = 0
    errors: list[str] = field(default_factory=list[str])
    processor: float = 0.0
    """The processor seconds of `sparring serve`."""


Converse: TypeAlias = Callable[[int, bool, Found], Awaitable[None]]
"""Holds the conversation with a number, whole or as streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the comparison."""

    name: str
    converse: Converse
    process_id: int | None = None
    """The process of `sparring serve`."""


def train(folder: Path) -> Path:
    """Train a run whose prompts list the tool, and return its folder."""
    recipe = Path(shutil.copytree(RECIPE, folder / "recipe"))
    code = (recipe / "environment.py").read_text("utf-8")
    (recipe / "environment.py").write_text(code.replace('    describe_tools = "prompt"\n', ""), "utf-8")
    command = ["train", str(recipe), "--no-check", "--no-supervise", *SETTINGS, f"run.runs_dir={folder / 'runs'}"]
    done = subprocess.run([sys.executable, "-m", "sparring", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the run to serve was not trained:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return folder / "runs" / "chase"


@contextmanager
def serving(run: Path, log: Path, *arguments: str, key: str = "") -> Iterator[tuple[str, int]]:
    """Run `sparring serve`, and yield its address and its process id."""
    command = [sys.executable, "-m", "sparring", "serve", str(run), "--port", "0", "--json", *arguments]
    environment = {**os.environ, "VLLM_KEY": key, "SPARRING_API_KEY": "any"}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            printed = ""
            while not printed.endswith("}\n"):
                if not (line := process.stdout.readline()):
                    raise RuntimeError(f"sparring serve ended:\n{log.read_text('utf-8')[-2000:]}")
                printed += line
            yield json.loads(printed)["base_url"], process.pid
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            process.kill()


@contextmanager
def vllm_server(base: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Start a vLLM server with this base model, and yield its address and its key."""
    from sparring.engines.servers.environment import default_folder
    from sparring.engines.servers.processes import ServerSettings, StartedServers

    settings = ServerSettings(
        model=str(base),
        environment=default_folder(),
        max_model_len=256,
        lora_rank=8,
        num_adapters=4,
        max_running=64,
    )
    servers = StartedServers(settings, folder, announce=print)
    try:
        yield servers.urls[0], servers.api_key
    finally:
        servers.close()


def has_vllm() -> bool:
    from sparring.engines.servers.environment import default_folder, find_vllm
    from sparring.errors import ServiceError

    try:
        find_vllm(default_folder())
    except ServiceError:
        return False
    return True


class Chat:
    """Conversations over the chat route, with tools that run here."""

    def __init__(self, base_url: str, tools: Sequence[Any]) -> None:
        import openai

        self._client = openai.AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0, timeout=300)
        self.tools = list(tools)
        self.histories: dict[int, list[list[Any]]] = {}
        """The messages of each request, by the number of the conversation."""

    async def converse(self, number: int, is_stream: bool, found: Found) -> None:
        rng = random.Random(number)
        keys = "abcdefghijklmnop"
        links = dict(zip(keys, rng.sample(keys, len(keys)), strict=True))
        messages: list[Any] = []
        requests = self.histories.setdefault(number, [])
        requests.clear()
        result: list[Any] = []
        for _ in range(NUM_TURNS):
            messages += result or [{"role": "user", "content": f"find {rng.choice(keys)} 3?"}]
            requests.append(list(messages))
            message = await self._ask(messages, is_stream, found)
            if message is None:
                return
            messages.append(message)
            calls = message.get("tool_calls", [])
            found.num_calls += len(calls)
            result = [
                {"role": "tool", "tool_call_id": call["id"], "content": _look_up(links, call["function"]["arguments"])}
                for call in calls
            ]

    async def _ask(self, messages: Sequence[Any], is_stream: bool, found: Found) -> dict[str, Any] | None:
        """Send one request and return the answer, or None after an error."""
        import openai

        asked: Any = {"model": "chase", "messages": messages, "tools": self.tools, "temperature": 0}
        asked["max_tokens"] = MAX_TOKENS
        began = time.perf_counter()
        try:
            if is_stream:
                asked["stream_options"] = {"include_usage": True}
                stream = await self._client.chat.completions.create(stream=True, **asked)
                message, num_tokens = await _read_stream(stream, began, found)
            else:
                answer = await self._client.chat.completions.create(**asked)
                message = answer.choices[0].message.model_dump(exclude_none=True)
                num_tokens = answer.usage.completion_tokens
        except openai.OpenAIError as error:
            found.errors.append(f"{type(error).__name__}: {error}")
            return None
        found.turns.append(time.perf_counter() - began)
        found.num_tokens += num_tokens
        return message


async def _read_stream(stream: Any, began: float, found: Found) -> tuple[dict[str, Any], int]:
    """Return the message of a stream, and the number of its tokens."""
    content, calls, num_tokens, is_first = "", list[dict[str, Any]](), 0, True
    async for chunk in stream:
        if is_first:
            found.first.append(time.perf_counter() - began)
            is_first = False
        for choice in chunk.choices:
            content += choice.delta.content or ""
            calls += [one.model_dump(exclude_none=True, exclude={"index"}) for one in choice.delta.tool_calls or ()]
        if chunk.usage is not None:
            num_tokens = chunk.usage.completion_tokens
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return ({**message, "tool_calls": calls} if calls else message), num_tokens


def _look_up(links: Mapping[str, str], arguments: str) -> str:
    return links.get(str(json.loads(arguments).get("key")), "none")


class Direct:
    """The same turns as token ids, sent to the vLLM server."""

    def __init__(self, url: str, key: str, prompts: Prompts, stop_id: Any) -> None:
        import httpx
        import openai

        self._client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=300)
        models = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}).json()["data"]
        self._adapter = next(one["id"] for one in models if one.get("parent"))
        self._prompts, self._stop_ids = prompts, [stop_id]

    async def converse(self, number: int, is_stream: bool, found: Found) -> None:
        import openai

        for prompt in self._prompts[number]:
            began = time.perf_counter()
            try:
                num_tokens = await self._generate(prompt, is_stream, began, found)
            except openai.OpenAIError as error:
                found.errors.append(f"{type(error).__name__}: {error}")
                return
            found.turns.append(time.perf_counter() - began)
            found.num_tokens += num_tokens

    async def _generate(self, prompt: Sequence[int], is_stream: bool, began: float, found: Found) -> int:
        """Sample one turn, and return the number of its tokens."""
        import openai

        body = {
            "model": self._adapter,
            "token_ids": list(prompt),
            "sampling_params": {"temperature": 0.0, "max_tokens": MAX_TOKENS, "stop_token_ids": self._stop_ids},
            "stream": is_stream,
        }
        path = "/inference/v1/generate"
        if not is_stream:
            answer: Any = await self._client.post(path, body=body, cast_to=object)
            return len(answer["choices"][0]["token_ids"])
        num_tokens, is_first = 0, True
        chunks: Any = await self._client.post(
            path, body=body, cast_to=object, stream=True, stream_cls=openai.AsyncStream[object]
        )
        async for chunk in chunks:
            num_tokens += sum(len(one["token_ids"] or ()) for one in chunk["choices"])
            if is_first and num_tokens:
                found.first.append(time.perf_counter() - began)
                is_first = False
        return num_tokens


async def load(side: Side, num_at_once: int, numbers: Sequence[int], is_stream: bool) -> Found:
    """Hold these conversations, several at once."""
    found, waiting = Found(), iter(numbers)

    async def client() -> None:
        for number in waiting:
            await side.converse(number, is_stream, found)

    processor, began = _processor_seconds(side.process_id), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(num_at_once)))
    found.seconds = time.perf_counter() - began
    found.processor = _processor_seconds(side.process_id) - processor
    return found


def _processor_seconds(process_id: int | None) -> float:
    """Return the processor time that a process has used."""
    if process_id is None:
        return 0.0
    fields = Path(f"/proc/{process_id}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Measured: TypeAlias = dict[tuple[str, str, int], list[Found]]
"""The measurements of all rounds, by side, kind of answer and number of concurrent conversations."""


def _numbers(num_at_once: int, fewest: int) -> range:
    return range(max(2 * num_at_once, fewest))


async def measure(sides: Sequence[Side], at_once: Sequence[int], num_rounds: int, fewest: int) -> Measured:
    """Measure every side with every number of conversations."""
    measured: Measured = {}
    for side in sides:
        await load(side, 4, range(min(8, fewest)), True)  # connections and caches
    for index in range(num_rounds):
        for kind, is_stream in KINDS.items():
            for number in at_once:
                for side in sides[:: 1 if index % 2 == 0 else -1]:
                    found = await load(side, number, _numbers(number, fewest), is_stream)
                    measured.setdefault((side.name, kind, number), []).append(found)
    return measured


async def rehearse(chat: Chat, tokenizer: Any, numbers: Sequence[int]) -> Prompts:
    """Hold all conversations once, and return their prompts. Raises RuntimeError after a failed request."""
    from sparring.chat import create_chat
    from sparring.gateway.dialects import ChatCompletions

    found = await load(Side(name="", converse=chat.converse), 8, numbers, False)
    if found.errors:
        raise RuntimeError(f"a request failed before the measurement: {found.errors[0]}")
    renderer, dialect = create_chat(tokenizer, "model:build_wide"), ChatCompletions()

    def render(messages: list[Any]) -> Sequence[int]:
        asked = dialect.read({"model": "chase", "messages": messages, "tools": chat.tools})
        return renderer.render(asked.messages, asked.tools)

    return {number: [*map(render, requests)] for number, requests in chat.histories.items()}


def rows_of(measured: Measured) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for (side, kind, number), rounds in measured.items():
        turns = [1000 * one for found in rounds for one in found.turns]
        first = [1000 * one for found in rounds for one in found.first]
        num_turns = max(1, len(turns))
        rows.append(
            {
                "side": side,
                "answers": kind,
                "conversations": number,
                "requests": len(turns),
                "requests/s": median(len(found.turns) / found.seconds for found in rounds),
                "first token, ms": quantile(first, 0.5) if first else "",
                "p50, ms": quantile(turns, 0.5),
                "p99, ms": quantile(turns, 0.99),
                "tool calls": sum(found.num_calls for found in rounds) if side != DIRECT else "",
                "tokens/turn": sum(found.num_tokens for found in rounds) / num_turns,
                "processor, ms": 1000 * sum(found.processor for found in rounds) / num_turns if side == VLLM else "",
                "errors": sum(len(found.errors) for found in rounds),
            }
        )
    return rows


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is at least as large as this share of the values; 0 without values."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)] if values else 0.0


def _ratio(kind: str, num_at_once: int) -> str:
    return f"share of the vLLM server's own requests/s, {kind}, {num_at_once} at once"


def figures_of(rows: Sequence[Mapping[str, Any]], measured: Measured) -> dict[str, float]:
    by_key = {(row["side"], row["answers"], row["conversations"]): row for row in rows}
    numbers = sorted({number for _, _, number in measured})
    figures: dict[str, float] = {"failed requests": float(sum(row["errors"] for row in rows))}
    sides = {row["side"] for row in rows}
    if DIRECT in sides:
        for kind in KINDS:
            for number in numbers:
                pairs = zip(measured[VLLM, kind, number], measured[DIRECT, kind, number], strict=True)
                ratios = [len(a.turns) / a.seconds / (len(b.turns) / b.seconds) for a, b in pairs]
                figures[_ratio(kind, number)] = median(ratios)
        one = numbers[0]
        ours, theirs = by_key[VLLM, "whole", one], by_key[DIRECT, "whole", one]
        figures["added to a turn, ms"] = ours["p50, ms"] - theirs["p50, ms"]
        figures["processor time of sparring serve for a turn, ms"] = by_key[VLLM, "whole", numbers[-1]]["processor, ms"]
    for side in (VLLM, TORCH):
        if side in sides:
            figures[f"requests/s, {side}, most at once"] = by_key[side, "whole", numbers[-1]]["requests/s"]
    return figures


def run_sides(folder: Path, *, with_vllm: bool, at_once: Sequence[int], num_rounds: int, fewest: int) -> Measured:
    """Train a run, start the servers, and measure all sides."""
    from recipes.pointer_chase.environment import PointerChase
    from recipes.pointer_chase.model import build_wide

    model, tokenizer = build_wide()
    tools = PointerChase.tool_schemas()
    run = train(folder)
    with ExitStack() as stack:
        sides: list[Side] = []
        if with_vllm:
            for part in (model, tokenizer):
                part.save_pretrained(folder / "base")
            url, key = stack.enter_context(vllm_server(folder / "base", folder / "servers"))
            to_vllm = ("--engine", "vllm", "--vllm-url", url, "--vllm-key-env", "VLLM_KEY")
            base_url, process_id = stack.enter_context(serving(run, folder / "vllm.txt", *to_vllm, key=key))
            prompts = asyncio.run(rehearse(Chat(base_url, tools), tokenizer, _numbers(max(at_once), fewest)))
            sides.append(Side(name=VLLM, converse=Chat(base_url, tools).converse, process_id=process_id))
            sides.append(Side(name=DIRECT, converse=Direct(url, key, prompts, tokenizer.eos_token_id).converse))
        base_url, process_id = stack.enter_context(serving(run, folder / "torch.txt"))
        sides.append(Side(name=TORCH, converse=Chat(base_url, tools).converse, process_id=process_id))
        return asyncio.run(measure(sides, at_once, num_rounds, fewest))


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; rates are medians")
    parser.add_argument("--conversations", type=int, nargs="+", default=CONVERSATIONS, help="concurrent conversations")
    arguments = parser.parse_args()
    with_vllm = has_vllm()
    if not with_vllm and not arguments.smoke:
        needs("vLLM: sparring install vllm (SPARRING_VLLM names another folder)")
    at_once, rounds, fewest = CONVERSATIONS[:1], 1, 4
    if not arguments.smoke:
        at_once, rounds, fewest = tuple(arguments.conversations), arguments.rounds, FEWEST
    with tempfile.TemporaryDirectory() as folder:
        measured = run_sides(Path(folder), with_vllm=with_vllm, at_once=at_once, num_rounds=rounds, fewest=fewest)
    rows = rows_of(measured)
    for error in sorted({one for rounds in measured.values() for found in rounds for one in found.errors})[:3]:
        print(f"a request failed: {error}")
    # A policy that calls no tools did nothing here.
    sides = {
        name: float(sum(row["requests" if name == DIRECT else "tool calls"] for row in rows if row["side"] == name))
        for name in dict.fromkeys(row["side"] for row in rows)
    }
    return report(
        "serve",
        rows,
        figures=figures_of(rows, measured),
        targets={"failed requests": {"at_most": 0.0}},
        path=arguments.json,
        sides=sides,
        smoke=arguments.smoke,
    )


if __name__ == "__main__":
    sys.exit(main())
