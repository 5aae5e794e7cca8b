"""Describe devices: memory, rates and hourly price.

The figures of the listed devices are published, and each has a source. The figures of this machine come from a
calibration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sparring.errors import UsageError
from sparring.runtime.machine import available_bytes

TRAINING_EFFICIENCY = 0.45
"""The share of the peak rate that LoRA training reaches: Qwen-7B on one A100 trained 65,536 tokens in 21.3 s in sequences of
8,192 (github.com/QwenLM/Qwen, "Profiling of Memory and Speed"). At 6 x 7.7e9 FLOP per token, this is 45 % of 312
TFLOP/s."""
SAMPLING_EFFICIENCY = 0.77
"""The share of the memory bandwidth that decoding reaches: Llama 3.1 8B in bf16 on one A100 with vLLM 0.23
(johnmusgrave.com/p/vllm-throughput-latency-sweep-on)."""
USABLE_SHARE = 0.9
"""The share of a GPU's memory that a plan uses. The rest is for the context, kernels and fragmentation."""
LAYER_SECONDS = 0.7e-3
"""The least time of one layer in a decoding step of Sparring's engine on a GPU, because the operations of a layer are
launched one by one. On an H100, a step takes 21.1 ms for 32 layers (8B) and 11.0 ms for 16 layers (1B)
(docs/benchmarks.md)."""
_RENT = "on demand, March 2026: deploybase.ai/articles/runpod-gpu-pricing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device, or several equal devices."""

    name: str
    memory_bytes: float
    """The memory of one device that a plan may use."""
    flops: float
    """The operations per second that training reaches."""
    bandwidth: float
    """The bytes per second that decoding reads."""
    layer_seconds: float = 0.0
    """The least time of one layer in a decoding step."""
    hourly_price: float | None = None
    """The price of all `num_devices` devices in US dollars per hour; None for the user's own machine."""
    num_devices: int = 1
    is_cuda: bool = True
    source: str = ""
    is_calibrated: bool = False


def _gpu(name: str, gigabytes: int, teraflops: float, terabytes: float, price: float, source: str) -> Device:
    return Device(
        name=name,
        memory_bytes=USABLE_SHARE * gigabytes * 1e9,
        flops=TRAINING_EFFICIENCY * teraflops * 1e12,
        bandwidth=SAMPLING_EFFICIENCY * terabytes * 1e12,
        layer_seconds=LAYER_SECONDS,
        hourly_price=price,
        source=f"{source}; rent {_RENT}",
    )


GPUS = {
    device.name: device
    for device in (
        _gpu("RTX4090", 24, 165, 1.008, 0.60, "NVIDIA Ada GPU architecture, dense bf16 with fp32 sums"),
        _gpu("L40S", 48, 362, 0.864, 1.40, "NVIDIA L40S data sheet, dense bf16"),
        _gpu("A100", 80, 312, 2.039, 2.45, "NVIDIA A100 80GB SXM data sheet, dense bf16"),
        _gpu("H100", 80, 989, 3.35, 4.76, "NVIDIA H100 SXM data sheet, dense bf16"),
        _gpu("H200", 141, 989, 4.8, 6.35, "NVIDIA H200 SXM data sheet, dense bf16"),
    )
}
"""The GPUs that `--gpu` accepts."""


def parse_gpu(text: str) -> Device:
    """Return the devices that `text` names, such as `H100` or `H100:8`. Raises UsageError for an unknown name, and for a
    number that is not positive."""
    name, colon, digits = text.partition(":")
    device = {name.lower(): device for name, device in GPUS.items()}.get(name.lower())
    if device is None:
        raise UsageError(f"--gpu {text!r} is not known; choose from {', '.join(GPUS)}, for example --gpu H100:1.")
    if colon and not re.fullmatch(r"[1-9]\d{0,5}", digits, flags=re.ASCII):
        raise UsageError(
            f"--gpu {text!r} names {digits or 'no number of'} GPUs; give at least one, for example {device.name}:8."
        )
    number = int(digits or 1)
    return replace(device, num_devices=number, hourly_price=number * (device.hourly_price or 0.0))


def this_machine(
    *, flops: float, bandwidth: float, is_cuda: bool = False, gpu_bytes: float = 0.0, num_devices: int = 1
) -> Device:
    """Return this machine with measured rates. Its memory is the free memory, or the memory of one of its GPUs."""
    memory = USABLE_SHARE * gpu_bytes if is_cuda else float(available_bytes())
    return Device(
        name="this machine",
        memory_bytes=memory,
        flops=flops,
        bandwidth=bandwidth,
        num_devices=num_devices,
        is_cuda=is_cuda,
        source="calibration on this machine",
        is_calibrated=True,
    )


def with_price(device: Device, hourly: float | None) -> Device:
    """Return the device with the user's own price per hour, if there is one."""
    return device if hourly is None else replace(device, hourly_price=hourly)
