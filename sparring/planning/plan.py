"""Plan a run on a device: which settings fit, and how much time and money the run takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from sparring.config import Config
from sparring.models.architectures.families import DENSE_TARGETS
from sparring.planning.devices import USABLE_SHARE, Device
from sparring.planning.division import RUN, Contents, Division, divide
from sparring.planning.memory import Line, Sampler, Settings, fill_cache, memory_lines
from sparring.planning.shapes import ModelShape
from sparring.types import Json

ALONE = Division()
SMALLEST_MICROBATCH = 2048
"""The smallest microbatch, in tokens. Below it, smaller products cost more time than checkpointing does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """The number and length of a run's episodes."""

    per_step: int
    steps: int
    tokens: float
    """The tokens per episode that the learner computes."""
    sampled: float
    """The sampled tokens per episode."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The time and the cost of a run."""

    sample_rate: float
    """The sampled tokens per second of all running turns."""
    train_rate: float
    """The learner's tokens per second."""
    sample_seconds: float
    """The seconds of sampling per step."""
    train_seconds: float
    hours: float
    """The hours of the whole run, without validation."""
    money: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The memory of a device."""

    contents: Contents
    lines: tuple[Line, ...]
    """The items of the chosen settings, or of the recipe's settings if none fit."""
    asked_lines: tuple[Line, ...]
    """The items of the recipe's settings."""

    @property
    def bytes(self) -> float:
        return sum(line.bytes for line in self.lines)

    @property
    def asked_bytes(self) -> float:
        return sum(line.bytes for line in self.asked_lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run on a device, or on several equal devices."""

    model: ModelShape
    device: Device
    asked: Settings
    """The settings of the recipe. They include checkpointing if the recipe leaves it open and does not fit without it."""
    chosen: Settings | None
    """The settings that fit and are nearest to the recipe's settings; None if no settings fit."""
    tables: tuple[Table, ...]
    """A table for each device whose contents are different."""
    smallest_bytes: float
    """The peak with the smallest microbatch and cache."""
    episodes: Episodes
    cost: Cost
    confidence: str

    @property
    def fullest(self) -> Table:
        """The table of the device that needs most with the recipe's settings."""
        return max(self.tables, key=lambda table: table.asked_bytes)

    @property
    def fits(self) -> bool:
        """Whether the recipe fits without changes."""
        return self.fullest.asked_bytes <= self.device.memory_bytes

    @property
    def server_share(self) -> float | None:
        """The share of the GPU's memory that all vLLM servers together may use while the learner trains, rounded down to a
        hundredth. None if no server shares a GPU with the learner."""
        shared = next((one.contents for one in self.tables if one.contents.has_run and one.contents.num_servers), None)
        if shared is None or not self.asked.is_cuda:
            return None
        learner = _total(self.model, self.asked, replace(shared, num_servers=0))
        share = USABLE_SHARE * (1 - learner / self.device.memory_bytes)
        return max(0.0, int(100 * share) / 100)

    def refusal(self) -> str | None:
        """Return an error message with the largest item and the necessary changes, or None if the recipe fits."""
        if self.fits:
            return None
        fullest = self.fullest
        largest = max(fullest.asked_lines, key=lambda line: line.bytes)
        where = "" if fullest.contents == RUN else f" for {fullest.contents.name}"
        text = (
            f"{self.model.name} needs {show_bytes(fullest.asked_bytes)}{where} with this recipe, but {self.device.name} has "
            f"only {show_bytes(self.device.memory_bytes)}. The largest item is {largest.name}, {show_bytes(largest.bytes)} "
            f"({largest.key}). "
        )
        if self.chosen is None:
            least = show_bytes(self.smallest_bytes)
            return text + f"The smallest batch and cache still need {least}; use a smaller model, or a larger device."
        return text + f"It fits with {', '.join(changes(self.asked, self.chosen))}."

    def as_json(self) -> dict[str, Json]:
        return {
            "model": self.model.name,
            "parameters": self.model.parameters,
            "device": self.device.name,
            "num_devices": self.device.num_devices,
            "memory_bytes": self.device.memory_bytes,
            "fits": self.fits,
            "tables": [
                {
                    "of": table.contents.name,
                    "lines": {line.name: line.bytes for line in table.lines},
                    "total_bytes": table.bytes,
                }
                for table in self.tables
            ],
            "settings": None if self.chosen is None else asdict(self.chosen),
            "server_share": self.server_share,
            "changes": [] if self.chosen is None else changes(self.asked, self.chosen),
            "episodes": asdict(self.episodes),
            "cost": asdict(self.cost),
            "confidence": self.confidence,
        }


def make_plan(config: Config, model: ModelShape, device: Device, episodes: Episodes | None = None) -> Plan:
    """Return the plan of a recipe. If `episodes` is None, episodes are as long as the recipe allows."""
    asked, division = settings_of(config, device), divide(config, device)

    def peak(settings: Settings) -> float:
        return max(_total(model, settings, contents) for contents in division.devices)

    if config.optimizer.activation_checkpointing == "auto" and peak(asked) > device.memory_bytes:
        asked = replace(asked, checkpointing=True)
    candidates = list(_candidates(asked))
    chosen = next((one for one in candidates if peak(one) <= device.memory_bytes), None)
    counted = episodes or longest_episodes(config)
    planned, servers = chosen or asked, [one for one in division.devices if one.num_servers]
    if servers:
        planned = fill_cache(model, planned, servers[0], device.memory_bytes)
    tables = (
        Table(
            contents=contents,
            lines=memory_lines(model, planned, contents),
            asked_lines=memory_lines(model, asked, contents),
        )
        for contents in division.devices
    )
    return Plan(
        model=model,
        device=device,
        asked=asked,
        chosen=chosen,
        tables=tuple(tables),
        smallest_bytes=min(map(peak, candidates)),
        episodes=counted,
        cost=run_cost(model, device, planned, counted, division),
        confidence=_confidence(config, device, planned, counted),
    )


def settings_of(config: Config, device: Device) -> Settings:
    """Return the recipe's settings on this kind of device, without checkpointing if the recipe leaves this open."""
    section, learner = config.model, config.learner
    precision = section.precision if section.precision != "auto" else "bf16" if device.is_cuda else "fp32"
    size = 2 if precision == "bf16" else 4
    is_adapted = section.trained_weights == "lora"
    is_stored_in_half = section.base_precision == "bf16" or (section.base_precision == "auto" and device.is_cuda)
    is_merged = not device.is_cuda if section.lora_merged == "auto" else section.lora_merged
    sampler: Sampler = "servers" if config.starts_servers else "elsewhere" if config.engine.uses_servers else "engine"
    num_ranks = None if learner.type != "group" else len(learner.base_urls) or learner.num_ranks
    return Settings(
        max_sequence_length=section.max_sequence_length,
        microbatch_tokens=config.optimizer.max_tokens_per_microbatch,
        # Servers get the rest of the memory as their cache. It must hold at least one episode.
        kv_cache_tokens=section.max_sequence_length if sampler == "servers" else config.engine.kv_cache_tokens,
        max_running=config.engine.max_running,
        # Ranks that divide the weights always compute the layers again (`TorchLearner.shard`).
        checkpointing=config.optimizer.activation_checkpointing is True or learner.shard_weights,
        base_bytes=2 if is_adapted and is_stored_in_half else 4,
        compute_bytes=size,
        is_merged=is_merged or not is_adapted,
        is_cuda=device.is_cuda,
        lora_rank=section.lora_rank if is_adapted else None,
        lora_targets=section.lora_targets or DENSE_TARGETS,
        lora_layers=section.lora_layers,
        sampler=sampler,
        num_ranks=num_ranks,
        shards_weights=learner.shard_weights,
        num_adapters=config.num_adapters,
        returns_cache=(
            not device.is_cuda
            and sampler == "engine"
            and config.runs_in_rounds
            and config.rollout.max_steps_off_policy == 0
        ),
    )


def longest_episodes(config: Config) -> Episodes:
    """Return the episodes of a recipe, each with the maximum length."""
    length = config.model.max_sequence_length
    turns = config.agent.max_turns or config.environment.max_turns
    sampled = min(turns * config.sampling.sampling_max_tokens, config.rollout.rollout_max_tokens or length, length)
    return Episodes(
        per_step=config.batch.global_batch_size * config.batch.group_size,
        steps=config.schedule.max_steps,
        tokens=length,
        sampled=sampled,
        source="the longest that the recipe allows",
    )


def run_cost(
    model: ModelShape, device: Device, settings: Settings, episodes: Episodes, division: Division = ALONE
) -> Cost:
    """Return the time and the cost. Sampling reads all weights and the cache for every batch of tokens, and takes
    at least the time to launch the operations of each layer, which vLLM launches at once. Learning consists of matrix
    products. Devices that sample divide the episodes among each other, and so do devices that learn."""
    context, num_sampling = episodes.tokens / 2, division.num_sampling
    at_once = math.ceil(episodes.per_step / num_sampling)
    running = min(settings.max_running, at_once, max(1, int(settings.kv_cache_tokens / episodes.tokens)))
    read = decoding_bytes(model, settings, running, context)
    computed = 2 * model.active_parameters * running
    launched = model.num_layers * device.layer_seconds if settings.sampler == "engine" else 0.0
    sample_rate = num_sampling * running / max(read / device.bandwidth, computed / device.flops, launched)
    train_rate = division.num_learning * device.flops / flops_per_token(model, settings, context)
    # The prompt and the tools' answers are read once, which takes a forward pass without a backward pass.
    unsampled = max(0.0, episodes.tokens - episodes.sampled)
    prefill = unsampled * 2 * model.active_parameters / (num_sampling * device.flops)
    sample_seconds = episodes.per_step * (episodes.sampled / sample_rate + prefill)
    train_seconds = episodes.per_step * episodes.tokens / train_rate
    hours = episodes.steps * (sample_seconds + train_seconds) / 3600
    money = None if device.hourly_price is None else hours * device.hourly_price
    return Cost(
        sample_rate=sample_rate,
        train_rate=train_rate,
        sample_seconds=sample_seconds,
        train_seconds=train_seconds,
        hours=hours,
        money=money,
    )


def decoding_bytes(model: ModelShape, settings: Settings, running: int, context: float) -> float:
    """Return the number of bytes that one decoding step reads: all weights, and the keys, values and states of each
    running turn."""
    cached = sum(
        layer.count * (min(context, layer.window or context) * layer.kv_width + layer.state_width)
        for layer in model.layers
    )
    weights = model.parameters - (0 if model.is_tied else model.vocab_size * model.hidden_size)
    return (weights + running * cached) * settings.compute_bytes


def flops_per_token(model: ModelShape, settings: Settings, context: float) -> float:
    """Return the number of operations per trained token, including attention over the tokens before it.

    Per parameter, there are 2 in the forward pass and 2 for the gradient of the inputs. There are 2 more for the
    gradient of the weights if all weights are trained, and 2 more if layers are recomputed.
    """
    passes = 2 + (1 if settings.lora_rank is None else 0) + (1 if settings.checkpointing else 0)
    attention = sum(
        layer.count * 4 * layer.attention["o_proj"][1] * min(context, layer.window or context)
        for layer in model.layers
        if layer.kv_width
    )
    return passes * (2 * model.active_parameters + attention)


def changes(before: Settings, after: Settings) -> list[str]:
    """Return the settings that differ, as overrides for a recipe."""
    keys = {
        "microbatch_tokens": "optimizer.max_tokens_per_microbatch",
        "kv_cache_tokens": "engine.kv_cache_tokens",
    }
    found = [
        f"{key}={getattr(after, name)}" for name, key in keys.items() if getattr(after, name) != getattr(before, name)
    ]
    if after.checkpointing and not before.checkpointing:
        found.append("optimizer.activation_checkpointing=true")
    return found


def show_bytes(num_bytes: float) -> str:
    """Return a size as text in GB (1e9 bytes) or MB (1e6 bytes)."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def _candidates(asked: Settings) -> Iterator[Settings]:
    """Yield the recipe's settings, followed by smaller ones.

    First, microbatches shrink to SMALLEST_MICROBATCH. Then checkpointing is added, then microbatches shrink further,
    and finally the cache shrinks. The cache always holds one whole episode.
    """
    kv_tokens = asked.kv_cache_tokens
    while True:
        for least in (max(SMALLEST_MICROBATCH, asked.max_sequence_length), asked.max_sequence_length):
            for checkpointing in (asked.checkpointing, True):
                tokens = asked.microbatch_tokens
                while True:
                    yield replace(
                        asked, microbatch_tokens=tokens, checkpointing=checkpointing, kv_cache_tokens=kv_tokens
                    )
                    if tokens <= least:
                        break
                    tokens = max(least, tokens // 2)
        if kv_tokens <= asked.max_sequence_length:
            return
        kv_tokens = max(asked.max_sequence_length, kv_tokens // 2)


def _total(model: ModelShape, settings: Settings, contents: Contents) -> float:
    return sum(line.bytes for line in memory_lines(model, settings, contents))


def _confidence(config: Config, device: Device, settings: Settings, episodes: Episodes) -> str:
    if device.is_calibrated and settings.sampler != "engine":
        rates = "rates measured on this machine just now, but with Sparring's engine instead of vLLM"
    elif device.is_calibrated:
        rates = "rates measured on this machine just now"
    else:
        rates = "rates from published figures, not measured with Sparring on this device"
    bound = ", an upper bound, because most are shorter" if episodes.source.startswith("the longest") else ""
    texts = [f"memory from formulas, not compared with a measured peak; {rates}; episodes {episodes.source}{bound}"]
    if settings.num_ranks is not None:
        gathering = " and gather their weights" if settings.shards_weights else ""
        texts.append(f"the time in which ranks add up their gradients{gathering} is not counted")
    if settings.shards_weights and device.is_cuda:
        texts.append("main memory, into which each rank loads the whole model first, is not counted")
    if config.run.launcher == "ray" and not device.is_cuda:
        texts.append("all parts count as if they were on one machine of the cluster")
    return "; ".join(texts)
