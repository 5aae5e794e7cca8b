"""A thread that has computed leaves no OpenMP threads behind."""

import sys
import threading
from pathlib import Path

import pytest
import torch

from sparring.models.threads import release_threads, releases_threads


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_a_released_team_is_gone_and_comes_back_with_the_next_operation() -> None:
    counts: dict[str, int] = {}

    def compute() -> float:
        matrix = torch.ones(1000, 1000)
        return (matrix + matrix).sum().item()

    def work() -> None:
        counts["before"] = num_threads()
        compute()
        counts["computed"] = num_threads()
        release_threads()
        counts["released"] = num_threads()
        counts["again"] = int(releases_threads(compute)())
        counts["after"] = num_threads()

    previous = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(previous)
    assert counts["computed"] == counts["before"] + 1
    assert counts["released"] == counts["after"] == counts["before"]
    assert counts["again"] == 2_000_000
