"""Devices: memory, rates and rent. Published figures, each with its source; this machine's come from a calibration."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from sparring.errors import UsageError

TRAINING_EFFICIENCY = 0.45
"""The share of the peak rate that LoRA training reaches: Qwen-7B on one A100 trained 65,536 tokens in 21.3 s in sequences of
8,192 (github.com/QwenLM/Qwen, "Profiling of Memory and Speed"), which is 6 x 7.7e9 FLOP a token, or 45 % of 312 TFLOP/s."""
SAMPLING_EFFICIENCY = 0.77
"""The share of the memory bandwidth that decoding reaches: Llama 3.1 8B in bf16 on one A100 with vLLM 0.23
(johnmusgrave.com/p/vllm-throughput-latency-sweep-on)."""
USABLE_SHARE = 0.9
"""The share of a GPU's memory that a plan uses. The rest is for the context, kernels and fragments, as in vLLM, whose
gpu_memory_utilization is 0.9 by default."""
_RENT = "on demand, March 2026: deploybase.ai/articles/runpod-gpu-pricing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One or several equal devices."""

    name: str
    memory_bytes: float
    """Of one device: what the plan may use."""
    flops: float
    """Operations a second that training reaches."""
    bandwidth: float
    """Bytes a second that decoding reads."""
    hourly_price: float | None = None
    """US dollars an hour, of all devices together; None for a machine of the user's own."""
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
"""GPUs that `--gpu` takes."""


def parse_gpu(text: str) -> Device:
    """Return the device of `H100` or `H100:1`. Raises UsageError for another text, and for several: a plan is for one."""
    match = re.fullmatch(r"([A-Za-z0-9]+)(?::(\d+))?", text)
    known = {name.lower(): device for name, device in GPUS.items()}
    device = known.get(match[1].lower()) if match else None
    if match is None or device is None:
        raise UsageError(f"--gpu {text!r} is not known; write one of {', '.join(GPUS)}, for example --gpu H100:1.")
    if int(match[2] or 1) != 1:
        raise UsageError(
            f"--gpu {text!r} names {match[2]} devices; sampler and learner share one today, so plan with {device.name}:1."
        )
    return device


def this_machine(*, flops: float, bandwidth: float, is_cuda: bool = False, gpu_bytes: float = 0.0) -> Device:
    """Return this machine with measured rates. Its memory is what is free now, or that of its GPU."""
    memory = USABLE_SHARE * gpu_bytes if is_cuda else float(available_bytes())
    return Device(
        name="this machine",
        memory_bytes=memory,
        flops=flops,
        bandwidth=bandwidth,
        is_cuda=is_cuda,
        source="calibration on this machine",
        is_calibrated=True,
    )


def available_bytes() -> int:
    """Return the memory that new allocations of this machine may take: MemAvailable, or all of it without /proc."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", file.read(), flags=re.MULTILINE))
        return int(sizes["MemAvailable"]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def with_price(device: Device, hourly: float | None) -> Device:
    """Return the device at the user's own price an hour, where there is one."""
    return device if hourly is None else replace(device, hourly_price=hourly)
