"""Products with adapted matrices."""

from __future__ import annotations

import pytest
import torch

from sparring.models.products import AdaptedMatrix, multiply


@pytest.mark.parametrize("adapted", [(True, True, True), (True, False, True), (False, False, True)])
@pytest.mark.parametrize("num_tokens", [7, 1, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapted_product_and_its_gradients_are_those_of_the_formula(
    adapted: tuple[bool, ...], dtype: torch.dtype, num_tokens: int
) -> None:
    """W x + scale B A x for each part of the matrix, by torch's own gradients in fp64."""
    heights, ranks, width, scale = (6, 2, 4), (3, 1, 2), 5, 0.5
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(sum(heights), width, generator=generator).to(dtype)
    x = torch.randn(num_tokens, width, generator=generator).to(dtype).requires_grad_()
    factors: list[torch.Tensor | None] = []
    for height, rank, is_adapted in zip(heights, ranks, adapted, strict=True):
        sizes = ((rank, width), (height, rank))
        factors += [torch.randn(size, generator=generator).requires_grad_() if is_adapted else None for size in sizes]
    matrix = AdaptedMatrix(base_O_I=base, heights=heights, scale=scale, factors=tuple(factors))
    trained = [x, *(one for one in factors if one is not None)]
    weights = torch.randn(num_tokens, sum(heights), generator=generator).to(dtype)

    found = multiply(x, matrix)
    gradients = torch.autograd.grad((found * weights).sum(), trained)

    copies = {one: one.detach().double().requires_grad_() for one in trained}
    parts = []
    for part, a, b in zip(base.double().split(heights), factors[0::2], factors[1::2], strict=True):
        parts.append(part if a is None or b is None else part + scale * copies[b] @ copies[a])
    expected = copies[x] @ torch.cat(parts).T
    expected_gradients = torch.autograd.grad((expected * weights.double()).sum(), list(copies.values()))
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.3}
    torch.testing.assert_close(found.double(), expected, **tolerance)
    for gradient, one in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient.double(), one, **tolerance)
    with torch.no_grad():
        assert torch.equal(multiply(x, matrix), found)
