"""Several ranks train as one process does, whatever they are dealt, and go on when one of them is killed."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.algorithms.losses import LOSSES
from sparring.errors import DataError, ServiceError
from sparring.models.token_tree import count_nodes
from sparring.training.group import GroupLearner
from sparring.training.packing import deal
from sparring.training.sequences import build_demonstration_batch, sequence_ids, trained_values, with_values
from sparring.types import TokenSegment, TrainingBatch, TrainingSequence, Weights
from tests.contracts.cases import torch_learner

ROOT = Path(__file__).parents[2]
LOSS_CONFIGS: dict[str, dict[str, Any]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {},
}


@dataclass(frozen=True)
class RankProcess:
    """A rank that serves the learner of the contract cases."""

    url: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def rank_processes(number: int, *, kind: str = "rank", faults: Sequence[str] = ()) -> Iterator[list[RankProcess]]:
    """Start ranks. `faults` are those of the first ranks."""
    with ExitStack() as stack:
        started: list[RankProcess] = []
        processes: list[subprocess.Popen[str]] = []
        for place in range(number):
            variables = {"SPARRING_FAULTS": faults[place]} if place < len(faults) and faults[place] else {}
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.contracts.process", kind],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
                )
            )
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            started.append(RankProcess(process.stdout.readline().strip(), process))
        yield started


def segment(parent: int | None, size: int, *, start: int, trained: bool = True) -> TokenSegment:
    mask = tuple(trained and (place > 0 or parent is not None) for place in range(size))
    values = tuple(0.3 + 0.1 * ((start + place) % 5) for place in range(size))
    return TokenSegment(
        parent=parent,
        token_ids=tuple(8 + (start + 7 * place) % 50 for place in range(size)),
        mask=mask,
        sampled_logprobs=tuple(-3.0 - one for one in values),
        advantages=tuple(one - 0.5 for one in values),
        weights=values,
        temperature=0.8,
    )


def without_signal(segment: TokenSegment) -> TokenSegment:
    """Return the segment with advantages of 0, as in a group whose rewards are equal."""
    return replace(segment, advantages=tuple(0.0 for _ in segment.advantages))


BRANCHES = TrainingBatch(
    segments=(
        segment(None, 21, start=3, trained=False),
        segment(0, 17, start=5),
        segment(1, 9, start=8),
        segment(0, 6, start=7),
        segment(None, 21, start=3, trained=False),
        segment(4, 5, start=6),
        segment(None, 12, start=9),
        segment(None, 8, start=11),
        without_signal(segment(None, 10, start=13)),
        without_signal(segment(None, 10, start=14)),
    ),
    sequences=(
        TrainingSequence(segments=(0, 1, 2), trajectory_id="a"),
        TrainingSequence(segments=(0, 3), trajectory_id="a"),
        TrainingSequence(segments=(4, 5), trajectory_id="b"),
        TrainingSequence(segments=(6,), trajectory_id="c"),
        TrainingSequence(segments=(7,), trajectory_id="d"),
        TrainingSequence(segments=(8,), trajectory_id="e"),
        TrainingSequence(segments=(9,), trajectory_id="f"),
    ),
)
"""A trajectory with a branch, one with the same prompt, two others, and a group without a signal."""
ONE = build_demonstration_batch([([8, 9, 10, 11, 12], [False, True, True, True, True])])
"""A batch of one trajectory, so that all ranks but one have no work."""
LEARNING_RATE = 0.005
"""AdamW moves a weight with a gradient near 0 as far as any other, so with larger rates the order of a sum shows."""


def three_steps(learner: Any, loss: str, **config: Any) -> list[float]:
    """Return the losses, gradient norms and metrics of three steps, the second of them with two passes, and the
    log-probabilities at the end."""
    found: list[float] = []
    for number, batches in enumerate(([BRANCHES], [ONE, BRANCHES], [BRANCHES])):
        for _ in range(2 if number == 1 else 1):
            metrics: dict[str, float] = {}
            for batch in batches:
                old = learner.logprobs(batch)
                metrics |= learner.forward_backward(batch, loss, {**LOSS_CONFIGS.get(loss, {}), **config}, old)
                found += [
                    metrics[name] for name in sorted(metrics) if name not in ("training/ranks", "training/tokens")
                ]
            found.append(learner.optim_step(LEARNING_RATE)["training/grad_norm"])
    return found + learner.logprobs(BRANCHES)


@pytest.fixture(scope="module", params=["rank", "rank of all weights", "rank, sharded", "rank of all weights, sharded"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def ranks(kind: str) -> Iterator[list[RankProcess]]:
    torch.set_num_threads(1)
    with rank_processes(3, kind=kind) as started:
        yield started


def group_of(ranks: Sequence[RankProcess], *, lora: bool, **options: Any) -> GroupLearner:
    learner = GroupLearner([rank.url for rank in ranks], patience_seconds=1.0, **options)
    learner.load_weights(torch_learner(lora=lora).export_weights())
    return learner


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_ranks_take_the_same_steps_as_one_process(kind: str, ranks: list[RankProcess], loss: str) -> None:
    lora = "all weights" not in kind
    expected = three_steps(torch_learner(lora=lora), loss)
    for number in (1, 2, 3):
        learner = group_of(ranks[:number], lora=lora)
        assert three_steps(learner, loss) == pytest.approx(expected, abs=1e-5, rel=1e-5)
        learner.close()


@pytest.mark.parametrize(
    "config",
    [
        {"off_policy_correction": "token_tis", "policy_ratio": "three_policy"},
        {"off_policy_correction": "sequence_tis"},
        {"off_policy_correction": "geometric_mask"},
        {"entropy_coef": 0.1},
        {"kl_coef": 0.1},
    ],
    ids=lambda config: ",".join(map(str, config.values())),
)
def test_corrections_and_terms_are_those_of_one_process(
    kind: str, ranks: list[RankProcess], config: dict[str, Any]
) -> None:
    lora = "all weights" not in kind
    if "kl_coef" in config and not lora:
        pytest.skip("with all weights in training, there is no model without training")
    expected = three_steps(torch_learner(lora=lora), "ppo", **config)
    learner = group_of(ranks[:2], lora=lora)
    assert three_steps(learner, "ppo", **config) == pytest.approx(expected, abs=1e-5, rel=1e-5)
    learner.close()


@pytest.mark.parametrize(
    "fault",
    [
        "learner.microbatch=kill,at=2",
        "learner.forward=kill,at=5",
        "learner.optimizing=kill,at=2",
        "learner.optimized=kill,at=2",
    ],
)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", ["rank", "rank, sharded"])
def test_a_rank_that_is_killed_costs_nothing(fault: str, place: int, kind: str) -> None:
    expected = three_steps(torch_learner(), "ppo")
    with rank_processes(2, kind=kind, faults=[*["", ""][:place], fault]) as ranks:
        learner = group_of(ranks, lora=True, rank_seconds=20.0)
        found = three_steps(learner, "ppo")
        assert ranks[place].process.wait(10) == -signal.SIGKILL
        assert found == pytest.approx(expected, abs=1e-5, rel=1e-5)
        assert learner.forward_backward(BRANCHES, "ppo", LOSS_CONFIGS["ppo"])["training/ranks"] == 1.0
        learner.close()


def test_a_rank_that_is_killed_with_a_part_of_the_trained_weights_ends_the_run() -> None:
    with rank_processes(2, kind="rank of all weights, sharded") as ranks:
        learner = group_of(ranks, lora=False)
        learner.forward_backward(BRANCHES, "ppo", LOSS_CONFIGS["ppo"])
        ranks[1].kill()
        with pytest.raises(ServiceError, match=r"a part of the trained weights.*resume the run"):
            learner.forward_backward(BRANCHES, "ppo", LOSS_CONFIGS["ppo"])
        learner.close()


def hash_files(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_a_state_of_one_process_or_of_ranks_loads_on_any_number_of_ranks(
    kind: str, ranks: list[RankProcess], tmp_path: Path
) -> None:
    lora = "all weights" not in kind
    alone = torch_learner(lora=lora)
    learner = group_of(ranks[:2], lora=lora)
    states = {"alone": alone, "two ranks": learner}
    for name, one in states.items():
        one.forward_backward(BRANCHES, "ppo", LOSS_CONFIGS["ppo"])
        one.optim_step(0.02)
        write_state(one, tmp_path / name)
    learner.close()
    for name in states:
        alone.load_state(tmp_path / name)
        expected = three_steps(alone, "ppo")
        for number in (1, 3):
            learner = group_of(ranks[:number], lora=lora)
            learner.load_state(tmp_path / name)
            assert write_state(learner, tmp_path / f"{name} on {number}") == hash_files(tmp_path / name)
            assert three_steps(learner, "ppo") == pytest.approx(expected, abs=1e-5, rel=1e-5)
            learner.close()


def write_state(learner: Any, folder: Path) -> dict[str, str]:
    folder.mkdir()
    learner.export_state().write(folder)
    return hash_files(folder)


def test_a_loss_that_is_not_finite_fails_on_all_ranks(kind: str, ranks: list[RankProcess]) -> None:
    lora = "all weights" not in kind
    learner = group_of(ranks[:2], lora=lora)
    segments = (*BRANCHES.segments[:-1], infinite(BRANCHES.segments[-1]))
    with pytest.raises(DataError, match="the loss of a microbatch"):
        learner.forward_backward(replace(BRANCHES, segments=segments), "ppo", LOSS_CONFIGS["ppo"])
    assert three_steps(learner, "ppo") == pytest.approx(
        three_steps(torch_learner(lora=lora), "ppo"), abs=1e-5, rel=1e-5
    )
    learner.close()


def infinite(segment: TokenSegment) -> TokenSegment:
    """Return the segment with weights whose loss is not finite."""
    return replace(segment, weights=tuple(math.inf if masked else 0.0 for masked in segment.mask))


def test_a_rank_that_stops_answering_is_left_out() -> None:
    expected = three_steps(torch_learner(), "ppo")
    with rank_processes(2) as ranks:
        learner = group_of(ranks, lora=True, rank_seconds=3.0)
        os.kill(ranks[1].process.pid, signal.SIGSTOP)
        assert three_steps(learner, "ppo") == pytest.approx(expected, abs=1e-5, rel=1e-5)
        learner.close()


@pytest.mark.parametrize("kind", ["rank", "rank, sharded", "rank of all weights, sharded"])
def test_an_error_of_one_rank_is_that_of_the_computation(kind: str) -> None:
    with rank_processes(2, kind=kind, faults=["", "learner.forward=error,raises=RuntimeError,times=9"]) as ranks:
        # Ranks with divided weights wait for each other in a pass, until the one that failed closes its connections.
        learner = group_of(ranks, lora="all weights" not in kind, rank_seconds=300.0)
        start_time = time.monotonic()
        with pytest.raises(ServiceError, match=r"learner.forward"):
            learner.forward_backward(BRANCHES, "ppo", LOSS_CONFIGS["ppo"])
        assert time.monotonic() - start_time < 60.0
        learner.close()


def test_a_rank_that_pauses_for_too_long_costs_nothing() -> None:
    expected = three_steps(torch_learner(), "ppo")
    with rank_processes(2) as ranks:
        learner = group_of(ranks, lora=True, rank_seconds=4.0)
        os.kill(ranks[0].process.pid, signal.SIGSTOP)
        threading.Timer(8.0, os.kill, (ranks[0].process.pid, signal.SIGCONT)).start()
        assert three_steps(learner, "ppo") == pytest.approx(expected, abs=1e-5, rel=1e-5)
        learner.close()


def test_a_rank_that_is_started_again_at_another_address_takes_part() -> None:
    expected = three_steps(torch_learner(), "ppo")
    with rank_processes(3) as ranks:
        places = Places([rank.url for rank in ranks[:2]])
        learner = group_of(ranks[:2], lora=True, processes=places)
        ranks[1].kill()
        assert learner.forward_backward(BRANCHES, "ppo", LOSS_CONFIGS["ppo"])["training/ranks"] == 1
        places.urls[1] = ranks[2].url
        learner.reset_optimizer()
        deadline = time.monotonic() + 60
        while learner.forward_backward(BRANCHES, "ppo", LOSS_CONFIGS["ppo"])["training/ranks"] < 2:
            learner.reset_optimizer()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        learner.load_weights(torch_learner().export_weights())
        learner.reset_optimizer()
        assert three_steps(learner, "ppo") == pytest.approx(expected, abs=1e-5, rel=1e-5)
        learner.close()


@dataclass(frozen=True)
class Places:
    """The current addresses of ranks. Implements `training.group.Processes`."""

    urls: list[str]

    def find_url(self, number: int) -> str:
        return self.urls[number]

    def close(self) -> None:
        """Do nothing: the test ends the ranks."""


def test_a_group_that_is_too_small_ends_the_run() -> None:
    with rank_processes(2) as ranks:
        learner = group_of(ranks, lora=True, min_ranks=2, rank_seconds=3.0)
        ranks[0].kill()
        with pytest.raises(ServiceError, match=r"1 of at least 2 ranks are left.*resume the run"):
            learner.forward_backward(BRANCHES, "ppo", LOSS_CONFIGS["ppo"])
        learner.close()


def test_ranks_of_different_models_form_no_group() -> None:
    with rank_processes(1) as (first,), rank_processes(1, kind="rank of all weights") as (second,):
        with pytest.raises(ServiceError, match="do not train the same model"):
            GroupLearner([first.url, second.url])
        with pytest.raises(ServiceError, match="does not answer"):
            GroupLearner([first.url, "http://127.0.0.1:9"])


def test_ranks_with_other_weights_are_noticed_at_the_first_step() -> None:
    with rank_processes(2) as ranks:
        learner = group_of(ranks, lora=True)
        other = {name: tensor + 1 for name, tensor in learner.export_weights().tensors.items()}
        learner._ranks[1].load_weights(Weights(tensors=other, fingerprint=""))
        learner.forward_backward(BRANCHES, "cross_entropy", {})
        with pytest.raises(ServiceError, match="different weights"):
            learner.optim_step(0.1)
        learner.close()


@st.composite
def batches(draw: st.DrawFn) -> TrainingBatch:
    """Draw trajectories with shared prompts."""
    prompts = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=4))
    texts = draw(
        st.lists(
            st.tuples(st.sampled_from(prompts), st.lists(st.integers(0, 3), min_size=1, max_size=6)),
            min_size=1,
            max_size=12,
        )
    )
    return build_demonstration_batch(
        [([*prompt, *text], [False] * len(prompt) + [True] * len(text)) for prompt, text in texts]
    )


@settings(max_examples=200, deadline=None)
@given(batches(), st.integers(1, 6))
def test_every_trained_token_is_dealt_once(batch: TrainingBatch, number: int) -> None:
    numbered = with_values(batch, range(batch.num_trained_tokens))
    shares = deal(numbered, number)
    assert len(shares) == number
    assert sorted(place for share in shares for place in share.places) == list(range(batch.num_trained_tokens))
    for share in shares:
        assert trained_values(share.batch, "sampled_logprobs") == list(share.places)
    sizes = [count_nodes(sequence_ids(share.batch)) if share.places else 0 for share in shares]
    # No share is larger than all tokens in equal parts, one trajectory more, and the prompts that it shares with others.
    longest = max(len(ids) for ids in sequence_ids(batch))
    whole = sum(len(ids) for ids in sequence_ids(batch))
    assert max(sizes) <= whole / number + longest
