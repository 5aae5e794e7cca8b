"""Draws follow the distribution whose log-probabilities are reported."""

from __future__ import annotations

import math

import pytest
import torch

from sparring.engines import sampling as sampling_module
from sparring.engines.sampling import UniformStream, draw
from sparring.types import Sampling

# Probabilities 0.5, 0.3, 0.2.
LOGITS = torch.tensor([[0.5, 0.3, 0.2]]).log()


@pytest.fixture(autouse=True, params=["compiled", "torch"])
def operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with the compiled operations, and with torch's, which GPUs use."""
    if request.param == "torch":
        monkeypatch.setattr(sampling_module, "can_compile", lambda *_: False)


def drawn(uniform: float, sampling: Sampling, logits: torch.Tensor = LOGITS) -> tuple[int, float]:
    tokens, logprobs = draw(logits, [sampling], [uniform])
    return int(tokens[0]), float(logprobs[0])


def test_a_uniform_number_is_looked_up_in_the_cumulated_distribution() -> None:
    # cumulated: 0.5, 0.8, 1.0
    found = [drawn(uniform, Sampling()) for uniform in (0.0, 0.49, 0.51, 0.79, 0.81, 0.9999)]
    assert [token for token, _ in found] == [0, 0, 1, 1, 2, 2]
    assert [math.exp(logprob) for _, logprob in found] == pytest.approx([0.5, 0.5, 0.3, 0.3, 0.2, 0.2])


def test_log_probabilities_are_those_after_the_temperature() -> None:
    # temperature 0.5 squares: 0.25, 0.09, 0.04 over 0.38
    token, logprob = drawn(0.7, Sampling(temperature=0.5))
    assert (token, math.exp(logprob)) == (1, pytest.approx(0.09 / 0.38))


def test_temperature_zero_takes_the_likeliest_and_reports_it_at_temperature_one() -> None:
    token, logprob = drawn(0.99, Sampling(temperature=0.0, top_p=0.1))
    assert (token, math.exp(logprob)) == (0, pytest.approx(0.5))


def test_top_p_keeps_the_smallest_sufficient_set_and_renormalizes() -> None:
    # 0.5 + 0.3 reaches 0.6: tokens 0 and 1 remain, with 0.625 and 0.375
    token, logprob = drawn(0.9999, Sampling(top_p=0.6))
    assert (token, math.exp(logprob)) == (1, pytest.approx(0.375))
    assert drawn(0.9999, Sampling(top_p=0.01))[0] == 0


def test_rows_of_one_batch_keep_their_own_settings() -> None:
    sampling = [Sampling(temperature=0.0), Sampling(), Sampling(temperature=0.5), Sampling(top_p=0.6)]
    logits = LOGITS.repeat(4, 1)
    tokens, logprobs = draw(logits, sampling, [0.9, 0.9, 0.7, 0.9])
    assert tokens.tolist() == [0, 2, 1, 1]
    assert logprobs.exp().tolist() == pytest.approx([0.5, 0.2, 0.09 / 0.38, 0.375])
    assert torch.equal(logits, LOGITS.repeat(4, 1))  # the caller's logits are left as they were


@pytest.mark.parametrize("vocab_size", [3, 256, 1000])
def test_frequencies_match_the_reported_probabilities(vocab_size: int) -> None:
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(0)) * 2
    stream = UniformStream(1)
    num_draws = 20_000
    tokens, logprobs = draw(
        logits.expand(num_draws, -1), [Sampling()] * num_draws, [stream.next() for _ in range(num_draws)]
    )
    expected = logits[0].double().softmax(-1)
    assert torch.allclose(logprobs.double().exp(), expected[tokens], atol=1e-6)
    observed = torch.bincount(tokens, minlength=vocab_size) / num_draws
    # the standard error of a frequency is at most 0.5 / sqrt(20000) = 0.0035
    assert (observed - expected).abs().max() < 0.015


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.full((1, 600), float("-inf"))
    logits[0, [255, 300]] = 0.0
    found = {drawn(uniform, Sampling(), logits)[0] for uniform in (0.0, 0.4999999, 0.5, 0.9999999, 1 - 2**-53)}
    assert found == {255, 300}


def test_a_stream_depends_on_its_seed_alone() -> None:
    left, right, other = UniformStream(7), UniformStream(7), UniformStream(8)
    numbers = [left.next() for _ in range(5)]
    assert numbers == [right.next() for _ in range(5)]
    assert numbers != [other.next() for _ in range(5)]


def test_top_k_keeps_the_most_likely_tokens_and_renormalizes() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).repeat(2, 1)
    before = logits.clone()
    tokens, logprobs = draw(logits, [Sampling()] * 2, [0.01, 0.01], top_ks=[2, None])
    # The first row may only draw tokens 2 and 3: log(e^2 / (e^2 + e^3)) = -log(1 + e).
    assert tokens.tolist() == [2, 0]
    assert logprobs[0].item() == pytest.approx(-math.log(1 + math.e), abs=1e-6)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_draw_does_not_depend_on_the_default_precision_of_torch(dtype: torch.dtype) -> None:
    # transformers changes it while it loads a model, for all threads of the process.
    logits = torch.randn(8, 1000, generator=torch.Generator().manual_seed(2))
    arguments = ([Sampling(temperature=0.7)] * 8, [0.1 * row for row in range(8)])
    expected = draw(logits, *arguments)
    torch.set_default_dtype(dtype)
    try:
        found = draw(logits, *arguments)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 0.1, 1.0, 50.0])
def test_log_probabilities_are_those_of_the_draws_at_any_temperature(temperature: float) -> None:
    logits = torch.tensor([[20.0, 19.99999, 19.9999, 19.0, -20.0]])
    expected = ((logits.double() - 20) / temperature).softmax(dim=-1)[0]
    probabilities: dict[int, float] = {}
    for place in range(1000):
        token, logprob = drawn(place / 1000, Sampling(temperature=temperature), logits)
        probabilities[token] = math.exp(logprob)
    for token, probability in probabilities.items():
        assert probability == pytest.approx(float(expected[token]), rel=1e-5)
    assert sum(probabilities.values()) == pytest.approx(1.0, abs=2e-3)
