"""Estimate the memory of a run in bytes, item by item. docs/planning.md states each formula."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from sparring.planning.division import RUN, Contents
from sparring.planning.shapes import ATTENTION, MLP, LayerShape, ModelShape

LOGIT_BYTES = {True: 256 * 2**20, False: 64 * 2**20}
"""The bytes of one chunk of logits. The key states whether the output matrix is stored in a different precision from
that of the matrix products."""
COPIES_OF_LOGITS = {True: 1.5, False: 1.0}
"""The number of fp32 chunks of logits that exist at once. The key is the same as in LOGIT_BYTES. If the matrix is
converted, the converted blocks take half a chunk."""
LEAST_HISTORY_BYTES, HISTORY_DIVISOR = 64 * 2**20, 8
"""The engine keeps the logits of recent histories. They take LEAST_HISTORY_BYTES, or the bytes of the KV cache divided
by HISTORY_DIVISOR if this is more."""
SMALLEST_PACKED = 2**19
"""The minimum number of elements of a matrix for which decoding on the CPU reads a packed copy."""
TRUNK_FACTOR = 2
"""The tokens for which the learner keeps the outputs of frozen layers, for each token of the KV cache."""
PROCESS_BYTES = 0.45e9
"""The memory of a process with torch and transformers on the CPU."""
FRAGMENTATION = {True: 0.44, False: 0.14}
"""The free memory between activations that glibc cannot use again, as a share of the activations (measured with
SmolLM2-135M). The key states whether short-lived tensors are computed again: they leave gaps between those that are kept."""
PRODUCT_BUFFERS = 0.6
"""The buffers of the CPU's matrix products, as a share of the output matrix (measured with three vocabulary sizes)."""
SERVER_BYTES = {True: 3e9, False: 2.2e9}
"""The memory of a vLLM server besides weights, adapters and cache: on a GPU (the key is True) its context, CUDA graphs and
activations, which is an estimate, and on the CPU its three processes (measured with vLLM 0.32 and a model of 6 MB)."""
SERVER_CACHE_BYTES = 2**30
"""The cache of a vLLM server on the CPU, which `engines.servers.processes` requests."""

Sampler: TypeAlias = Literal["engine", "servers", "elsewhere"]
"""What samples: the engine in the process of the run, vLLM servers that the run starts, or what is running already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that determine how much memory a model needs."""

    max_sequence_length: int
    microbatch_tokens: int
    kv_cache_tokens: int
    max_running: int
    checkpointing: bool
    base_bytes: int
    """The bytes of one stored number of the base model."""
    compute_bytes: int
    """The bytes of one number in the matrix products."""
    is_merged: bool
    """Whether the engine's weights are a copy with the adapter merged in, or the base itself."""
    is_cuda: bool
    lora_rank: int | None
    """The rank of the adapter; None trains every weight."""
    lora_targets: tuple[str, ...] = ()
    lora_layers: int | None = None
    sampler: Sampler = "engine"
    num_ranks: int | None = None
    """The number of ranks that train the model together; None if the learner is in the process of the run."""
    shards_weights: bool = False
    """Whether the ranks divide the weights."""
    num_adapters: int = 1
    """The number of adapters that each server keeps."""
    returns_cache: bool = False
    """Whether the engine returns the memory of its cache before the learner takes a step in the same process."""

    @property
    def num_parts(self) -> int:
        """The number of parts into which the weights are divided."""
        return self.num_ranks or 1 if self.shards_weights else 1

    @property
    def tokens(self) -> int:
        """The maximum number of tokens in one backward pass. An episode is never divided."""
        return max(self.microbatch_tokens, self.max_sequence_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One item of a plan's memory."""

    name: str
    bytes: float
    key: str
    """The setting that changes this item most."""


def memory_lines(shape: ModelShape, settings: Settings, contents: Contents = RUN) -> tuple[Line, ...]:
    """Return the items of a device's peak memory. The peak is reached during a learner step, while the engine or the servers
    keep their weights and cache."""
    lines: tuple[Line, ...] = ()
    if contents.has_run and settings.num_ranks is None:
        lines += _lines_of_one_process(shape, settings)
    elif contents.has_run:
        lines += _run_lines(shape, settings)
    if contents.num_ranks:
        lines += _rank_lines(shape, settings, contents.num_ranks)
    if contents.num_servers:
        lines += _server_lines(shape, settings, contents.num_servers)
    return tuple(line for line in lines if line.bytes)


def _lines_of_one_process(shape: ModelShape, settings: Settings) -> tuple[Line, ...]:
    """Return what the process of the run needs if its learner is there. If the engine returns its cache first, the items are
    those of sampling or of the learner step, whichever takes more."""
    engine, cache = _engine_lines(shape, settings)
    step = _step_lines(shape, settings)
    if settings.returns_cache:
        cache, step = (cache, ()) if _sum(cache) > _sum(step) else ((), step)
    return (
        Line(name="weights", bytes=shape.parameters * settings.base_bytes, key="model.name"),
        _versions_line(shape, settings),
        _optimizer_line(shape, settings),
        *engine,
        *cache,
        *step,
        *_process_lines(shape, settings),
    )


def _run_lines(shape: ModelShape, settings: Settings) -> tuple[Line, ...]:
    """Return what the process of the run needs if its learner is a group: a model of its own, and the engine if it is
    there."""
    engine, cache = _engine_lines(shape, settings)
    lines = (
        Line(name="weights", bytes=shape.parameters * settings.base_bytes, key="model.name"),
        _versions_line(shape, settings),
        *engine,
        *cache,
        *_process_lines(shape, settings),
    )
    shared = {line.name for line in (*engine, *cache)}
    return tuple(line if line.name in shared else replace(line, name=f"{line.name} of the run") for line in lines)


def _rank_lines(shape: ModelShape, settings: Settings, number: int) -> tuple[Line, ...]:
    """Return what `number` ranks need together. The peak is the step, or one of the moments when they need more: while they
    load the model, add up their gradients, or copy the optimizer's state for a checkpoint."""
    trained, parts = trained_parameters(shape, settings), settings.num_parts
    shares_trained = parts > 1 and settings.lora_rank is None
    weights, key = shape.parameters * settings.base_bytes, "learner.num_ranks"
    # In fp32: the trained numbers and a copy for the run, or the fused matrices of the forward pass. With shards, rank 0 has
    # the only copy, and a layer is fused while it is computed.
    versions = replace(_versions_line(shape, settings), bytes=0 if shares_trained else 8 * trained)
    optimizer = _optimizer_line(shape, settings)
    always = (
        Line(name="weights", bytes=weights / parts, key="model.name"),
        versions,
        replace(optimizer, bytes=optimizer.bytes / (parts if shares_trained else 1)),
        *_process_lines(shape, settings),
    )
    gathered = Line(name="gathered layers", bytes=_gathered_bytes(shape, settings), key="model.name")
    total = Line(name="sum of the gradients", bytes=0 if shares_trained else 4 * trained, key="model.lora_rank")
    moments = [_times(number, (gathered, *_step_lines(shape, settings))), _times(number, (total,))]
    copy: tuple[Line, ...] = ()
    if not settings.is_cuda:  # with a GPU, these are in main memory
        whole = Line(name="rest of the weights while they are loaded", bytes=weights - weights / parts, key=key)
        moments.append(_times(number, (whole,)))
        moments.append((Line(name="checkpoint of rank 0", bytes=8 * trained, key="model.trained_weights"),))
        copy = (Line(name="copy of rank 0 for the run", bytes=4 * trained if shares_trained else 0, key=key),)
    return (*_times(number, always), *copy, *max(moments, key=_sum))


def _times(number: int, lines: tuple[Line, ...]) -> tuple[Line, ...]:
    return tuple(replace(line, bytes=number * line.bytes) for line in lines)


def _versions_line(shape: ModelShape, settings: Settings) -> Line:
    """Return what is kept of the trained weights, in fp32: the numbers, a copy of their initial values, and a copy of the
    version that the engine samples with. An engine that does not merge the adapter joins its factors, in the precision of
    the products (1.5 times as many numbers for a Llama with an adapter on every matrix)."""
    joins_factors = settings.sampler == "engine" and not settings.is_merged and settings.lora_rank is not None
    each = 12 + 1.5 * settings.compute_bytes if joins_factors else 12
    return Line(
        name="adapter and its versions" if settings.lora_rank else "master weights and versions",
        bytes=each * trained_parameters(shape, settings),
        key="model.lora_rank",
    )


def _optimizer_line(shape: ModelShape, settings: Settings) -> Line:
    """Return the gradient and the two moments of AdamW, in fp32."""
    trained = trained_parameters(shape, settings)
    return Line(name="gradients and optimizer", bytes=12 * trained, key="model.lora_rank")


def _engine_lines(shape: ModelShape, settings: Settings) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    """Return what the engine in the process of the run always needs besides the base model, and what it needs for
    sampling."""
    if settings.sampler != "engine":
        return (), ()
    return _engine_weights(shape, settings), _cache_lines(shape, settings)


def _sum(lines: tuple[Line, ...]) -> float:
    return sum(line.bytes for line in lines)


def _step_lines(shape: ModelShape, settings: Settings) -> tuple[Line, ...]:
    """Return what a learner step needs besides the weights."""
    activations, key = activation_bytes(shape, settings), "optimizer.max_tokens_per_microbatch"
    # Ranks that divide the weights return freed blocks to the kernel at once (`runtime.allocator.return_large_blocks`).
    has_gaps = not settings.is_cuda and settings.num_parts == 1
    fragmentation = FRAGMENTATION[_computes_again(shape, settings)] * activations if has_gaps else 0.0
    return (
        Line(name="activations", bytes=activations, key=key),
        Line(name="logits", bytes=_logit_bytes(shape, settings), key=key),
        Line(name="fragmentation", bytes=fragmentation, key=key),
    )


def _engine_weights(shape: ModelShape, settings: Settings) -> tuple[Line, ...]:
    """Return what the engine in the learner's process always needs besides the base model."""
    return (
        Line(name="weights of the engine", bytes=_copies_bytes(shape, settings), key="model.lora_merged"),
        Line(name="outputs of frozen layers", bytes=_trunk_bytes(shape, settings), key="model.lora_layers"),
    )


def _cache_lines(shape: ModelShape, settings: Settings) -> tuple[Line, ...]:
    """Return what the engine in the learner's process needs for sampling."""
    cache = cache_bytes(shape, settings, settings.compute_bytes)
    return (
        Line(name="KV cache", bytes=cache, key="engine.kv_cache_tokens"),
        Line(
            name="logits of recent histories",
            bytes=max(LEAST_HISTORY_BYTES, cache / HISTORY_DIVISOR),
            key="engine.kv_cache_tokens",
        ),
    )


def _server_lines(shape: ModelShape, settings: Settings, number: int) -> tuple[Line, ...]:
    """Return what `number` vLLM servers need. Each keeps a base model of its own."""
    size = 2 if settings.is_cuda else 4
    cache = cache_bytes(shape, settings, size) if settings.is_cuda else SERVER_CACHE_BYTES
    adapters = 0 if settings.lora_rank is None else settings.num_adapters * trained_parameters(shape, settings) * size
    return (
        Line(name="weights of the servers", bytes=number * shape.parameters * size, key="model.name"),
        Line(name="adapters of the servers", bytes=number * adapters, key="rollout.max_steps_off_policy"),
        Line(name="KV cache of the servers", bytes=number * cache, key="model.max_sequence_length"),
        Line(
            name="other memory of the servers", bytes=number * SERVER_BYTES[settings.is_cuda], key="engine.num_servers"
        ),
    )


def fill_cache(shape: ModelShape, settings: Settings, contents: Contents, memory_bytes: float) -> Settings:
    """Return the settings with as many tokens in the cache as the servers of this device keep. On a GPU, the cache gets the
    rest of the memory, up to whole episodes for all running turns. On the CPU, its size is fixed."""
    number, tokens = contents.num_servers, settings.kv_cache_tokens
    per_token = cache_bytes(shape, settings, 2 if settings.is_cuda else 4) / tokens
    if not number or not per_token:
        return settings
    if not settings.is_cuda:
        return replace(settings, kv_cache_tokens=number * int(SERVER_CACHE_BYTES / per_token))
    free = memory_bytes - _sum(memory_lines(shape, settings, contents))
    most = settings.max_running * settings.max_sequence_length
    return replace(settings, kv_cache_tokens=max(tokens, min(most, tokens + int(free / (number * per_token)))))


def _process_lines(shape: ModelShape, settings: Settings) -> tuple[Line, ...]:
    """Return what a process on the CPU needs besides its tensors. On a GPU, the share that a plan leaves free covers it."""
    if settings.is_cuda:
        return ()
    buffers = PRODUCT_BUFFERS * shape.vocab_size * shape.hidden_size * settings.compute_bytes
    return (Line(name="process", bytes=PROCESS_BYTES + buffers, key="run.num_threads"),)


def trained_parameters(shape: ModelShape, settings: Settings) -> int:
    """Return the number of trained parameters. By default, an adapter covers attention, and also the MLP if the MLP has
    no experts."""
    if settings.lora_rank is None:
        return shape.parameters
    has_experts = any(layer.num_experts > 1 for layer in shape.layers)
    usual = ATTENTION if has_experts else (*ATTENTION, *MLP)
    return shape.adapter_parameters(settings.lora_rank, settings.lora_targets or usual, settings.lora_layers)


def saved_per_token(layer: LayerShape, hidden: int, *, keeps_all: bool) -> int:
    """Return how many numbers per token one layer keeps for its backward pass.

    These are the inputs of both norms and of the four products; queries, keys and values before and after the rotation;
    the output of attention; and gate, up, their product and the activation. Each active expert keeps its own set of
    numbers. Without `keeps_all`, the outputs of the norms, the activation and the product are not kept.
    """
    rows = sum(shape[0] for name, shape in layer.attention.items() if name in ("q_proj", "k_proj", "v_proj"))
    if not layer.kv_width:  # a recurrent layer keeps the inputs and outputs of its mixing instead
        rows = sum(shape[0] for shape in layer.attention.values()) - hidden
        return 4 * hidden + 3 * rows + 4 * layer.active_experts * _intermediate(layer)
    attended = layer.attention["o_proj"][1]
    rotated = attended + layer.kv_width // 2
    norms, gates = (4, 4) if keeps_all else (2, 2)
    return norms * hidden + rows + rotated + 2 * attended + gates * layer.active_experts * _intermediate(layer)


def activation_bytes(shape: ModelShape, settings: Settings) -> float:
    """Return the bytes that the forward pass of one microbatch keeps, including the gradients of one layer.

    With checkpointing, each layer keeps only its input, and one layer at a time is recomputed. If only the last layers are
    adapted, each kind of layer gets its proportional share of them.
    """
    hidden = shape.hidden_size
    saved = [saved_per_token(layer, hidden, keeps_all=not _computes_again(shape, settings)) for layer in shape.layers]
    # The gradients of one layer's MLP are the largest of the backward pass.
    gradients = max(3 * layer.active_experts * _intermediate(layer) for layer in shape.layers) + 2 * hidden
    if settings.checkpointing:
        kept = _trained_layers(shape, settings) * hidden + max(saved)
    else:
        share = _trained_layers(shape, settings) / shape.num_layers
        kept = share * sum(layer.count * numbers for layer, numbers in zip(shape.layers, saved, strict=True))
    ends = 3 * hidden  # the embedding, the last norm's output, and the rows from which tokens are predicted
    return float(settings.tokens * settings.compute_bytes * (kept + gradients + ends))


def _gathered_bytes(shape: ModelShape, settings: Settings) -> float:
    """Return the bytes of the weights that a rank has gathered at once, if the ranks divide them: the embedding and the output
    matrix for the whole pass, the layer that is computed, a copy of it with fused matrices, and the next layer. If all weights
    are trained, also their gradients: those of the embedding and the output matrix, of the layer before and after they are
    taken apart, and once more while the ranks add them up."""
    if settings.num_parts == 1:
        return 0.0
    ends = shape.vocab_size * shape.hidden_size * (1 if shape.is_tied else 2)
    layer = max(one.parameters for one in shape.layers)
    copies = (1, 3) if settings.lora_rank is not None else (2, 6)
    return float(settings.base_bytes * (copies[0] * ends + copies[1] * layer))


def _computes_again(shape: ModelShape, settings: Settings) -> bool:
    """Return whether the backward pass computes norms and activations again. With checkpointing, it computes whole layers
    again instead, one at a time, and keeps everything in this layer."""
    return shape.is_lean and not settings.checkpointing


def _trained_layers(shape: ModelShape, settings: Settings) -> int:
    if settings.lora_rank is None or settings.lora_layers is None:
        return shape.num_layers
    return min(settings.lora_layers, shape.num_layers)


def _copies_bytes(shape: ModelShape, settings: Settings) -> float:
    """Return the bytes of the engine's own weights if it samples with merged weights. They are a fused copy of the
    weights that are trained or stored in another precision. On the CPU, the packed copies that decoding reads are
    added."""
    if not settings.is_merged:
        return 0.0
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.is_tied else 2)
    if settings.lora_rank is None:
        copied: float = shape.parameters
    elif settings.base_bytes != settings.compute_bytes:
        copied = shape.linear_parameters + embeddings
    else:
        copied = shape.linear_parameters * _trained_layers(shape, settings) / shape.num_layers
    is_packed = not settings.is_cuda and settings.compute_bytes == 4
    return (copied + (_packed_parameters(shape) if is_packed else 0)) * settings.compute_bytes


def _trunk_bytes(shape: ModelShape, settings: Settings) -> float:
    """Return the bytes that the outputs of the frozen layers take: in the rows of the engine's cache, and for the learner."""
    if _trained_layers(shape, settings) == shape.num_layers:
        return 0.0
    return (1.0 + TRUNK_FACTOR) * settings.kv_cache_tokens * shape.hidden_size * settings.compute_bytes


def _packed_parameters(shape: ModelShape) -> int:
    fused = [(1, shape.vocab_size * shape.hidden_size)]
    for layer in shape.layers:
        sizes = {name: rows * columns for name, (rows, columns) in {**layer.attention, **layer.mlp}.items()}
        for names in (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)):
            fused.append((layer.count, sum(sizes.get(name, 0) for name in names)))
    return sum(count * size for count, size in fused if size >= SMALLEST_PACKED)


def cache_bytes(shape: ModelShape, settings: Settings, size: int) -> float:
    """Return the bytes of the keys, values and states, with `size` bytes per number."""
    tokens, turns = settings.kv_cache_tokens, settings.max_running
    return size * sum(layer.count * (tokens * layer.kv_width + turns * layer.state_width) for layer in shape.layers)


def _logit_bytes(shape: ModelShape, settings: Settings) -> float:
    is_converted = settings.base_bytes != settings.compute_bytes
    rows = min(settings.tokens, max(1, LOGIT_BYTES[is_converted] // (4 * shape.vocab_size)))
    return COPIES_OF_LOGITS[is_converted] * 4.0 * rows * shape.vocab_size


def _intermediate(layer: LayerShape) -> int:
    return layer.mlp["gate_proj"][0]
