"""Functions compiled by Numba for the CPU: attention over the cache, norms, rotary embedding, activation, and the sums of
sampling. The matrix products are those of torch.

torch's operations are made for large tensors, and each is one pass over memory. For the few rows of a decoding pass, its
fused attention takes twice as long as these functions, and its norms take four times as long (docs/notebook). The results
for a row do not depend on which rows are computed with it, as long as equal tokens have equal keys and values, nor on the
number of threads.

Each function runs on all threads of torch at once. Its argument is a pointer to sizes, strides and addresses of tensors.

Shapes: B rows, N new tokens, K key/value heads, R query heads that share one key/value head, D head dimension, S tokens of
the cache, L tokens of a row, I inner dimension.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from sparring.models.compiled import compile_for_threads, find_function

SUMS = {"reassoc", "contract", "nsz"}
"""What the compiler may do with floating-point numbers: sum in a different order. Unlike with `fastmath=True`, NaN and
infinity keep their meaning."""
LOG2_E = np.float32(1.4426950408889634)
LOG_2_HIGH, LOG_2_LOW = np.float32(0.693359375), np.float32(-0.00021219444)
"""Two numbers whose sum is log(2). The products of the first one with small integers are exact."""
get_thread, get_num_threads = find_function("omp_get_thread_num"), find_function("omp_get_num_threads")


def _convert_to_pointer(kind: Any) -> Any:
    """Return a function that converts an address to a pointer."""

    def convert(_: Any, address: Any) -> Any:
        return types.CPointer(kind)(types.int64), lambda context, builder, signature, arguments: builder.inttoptr(
            arguments[0], context.get_value_type(signature.return_type)
        )

    return intrinsic(convert)


def _read_as_float(_: Any, bits: Any) -> Any:
    return types.float32(types.int32), lambda context, builder, signature, arguments: builder.bitcast(
        arguments[0], context.get_value_type(signature.return_type)
    )


floats_at, integers_at = _convert_to_pointer(types.float32), _convert_to_pointer(types.int64)
as_float: Any = intrinsic(_read_as_float)
"""Converts 32 bits to the number that they are in fp32."""


@numba.njit(fastmath=SUMS, error_model="numpy", inline="always")
def _exponentiate(x: Any) -> Any:
    """Return e^x with a relative error of about 1e-7, or 1e-7 + 4e-8 |x| where the compiler may sum in a different order;
    0 below 2^-126, and infinity from 2^128 on. Unlike a library's function, it can be computed with vector instructions.

    e^x = 2^n e^r, where n is the integer next to x log2(e), and r = x - n log(2). e^r is a polynomial, and n becomes the
    exponent of a number.
    """
    exponent = x * LOG2_E
    is_zero = exponent < np.float32(-126)
    # A comparison with NaN is false, so that NaN remains NaN.
    if is_zero:
        exponent = np.float32(-126)
    if exponent > np.float32(128):
        exponent = np.float32(128)
    whole = np.floor(exponent + np.float32(0.5))
    rest = x - whole * LOG_2_HIGH - whole * LOG_2_LOW
    power = np.float32(0.00138145982)
    power = power * rest + np.float32(0.00836871691)
    power = power * rest + np.float32(0.0416683881)
    power = power * rest + np.float32(0.166665206)
    power = power * rest + np.float32(0.499999934)
    power = power * (rest * rest) + rest + np.float32(1)
    power *= as_float((np.int32(whole) + np.int32(127)) << np.int32(23))
    return np.float32(0) if is_zero else power


@numba.njit(fastmath=SUMS, error_model="numpy")
def _score(queries_R_D: Any, keys_L_D: Any, scores_R_L: Any) -> None:
    """Write the products of the queries and the keys to `scores_R_L`, four keys at a time."""
    num_keys = len(keys_L_D)
    for index in range(0, num_keys - 3, 4):
        key_0, key_1, key_2, key_3 = keys_L_D[index], keys_L_D[index + 1], keys_L_D[index + 2], keys_L_D[index + 3]
        for head in range(len(queries_R_D)):
            query, scores = queries_R_D[head], scores_R_L[head]
            sum_0 = sum_1 = sum_2 = sum_3 = np.float32(0)
            for place in range(len(query)):
                sum_0 += query[place] * key_0[place]
                sum_1 += query[place] * key_1[place]
                sum_2 += query[place] * key_2[place]
                sum_3 += query[place] * key_3[place]
            scores[index], scores[index + 1], scores[index + 2], scores[index + 3] = sum_0, sum_1, sum_2, sum_3
    for index in range(num_keys - num_keys % 4, num_keys):
        key = keys_L_D[index]
        for head in range(len(queries_R_D)):
            query, total = queries_R_D[head], np.float32(0)
            for place in range(len(query)):
                total += query[place] * key[place]
            scores_R_L[head, index] = total


@numba.njit(fastmath=SUMS | {"nnan"}, error_model="numpy")
def _maximum(scores_L: Any) -> Any:
    most = scores_L[0]
    for score in scores_L:
        most = max(most, score)
    return most


@numba.njit(fastmath=SUMS, error_model="numpy")
def _exponentiate_scores(scores_L: Any) -> Any:
    """Replace each score by its exponential, relative to that of the largest one, and return their sum."""
    most, total = _maximum(scores_L), np.float32(0)
    for place in range(len(scores_L)):
        weight = _exponentiate(scores_L[place] - most)
        scores_L[place] = weight
        total += weight
    return total


@numba.njit(fastmath=SUMS, error_model="numpy")
def _add_values(weights_R_L: Any, values_L_D: Any, out_R_D: Any) -> None:
    """Add the weighted values to `out_R_D`, four at a time."""
    num_values = len(values_L_D)
    for index in range(0, num_values - 3, 4):
        value_0, value_1 = values_L_D[index], values_L_D[index + 1]
        value_2, value_3 = values_L_D[index + 2], values_L_D[index + 3]
        for head in range(len(out_R_D)):
            out, weights = out_R_D[head], weights_R_L[head]
            weight_0, weight_1 = weights[index], weights[index + 1]
            weight_2, weight_3 = weights[index + 2], weights[index + 3]
            for place in range(len(out)):
                out[place] += (weight_0 * value_0[place] + weight_1 * value_1[place]) + (
                    weight_2 * value_2[place] + weight_3 * value_3[place]
                )
    for index in range(num_values - num_values % 4, num_values):
        value = values_L_D[index]
        for head in range(len(out_R_D)):
            out, weight = out_R_D[head], weights_R_L[head, index]
            for place in range(len(out)):
                out[place] += weight * value[place]


def _attend_rows(arguments: Any) -> None:
    """Write keys and values of new tokens to the cache, and compute their attention. The threads share the pairs of a
    head and a row, so that each reads about as many tokens.

    A row is described by its place in the cache, its numbers of known and new tokens, the index of its first new token,
    and the range of its parts. A part is a range of its first tokens that are read elsewhere, and their place.
    """
    thread, num_threads = get_thread(), get_num_threads()
    given = carray(arguments, (19,))
    num_rows, num_new, num_heads, repeat, dim = given[0], given[1], given[2], given[3], given[4]
    num_places, num_parts, longest = given[5], given[6], given[7]
    q_stride, k_stride, v_stride = given[8], given[9], given[10]
    q = carray(floats_at(given[11]), (num_new * q_stride,))
    k = carray(floats_at(given[12]), (num_new * k_stride,))
    v = carray(floats_at(given[13]), (num_new * v_stride,))
    out = carray(floats_at(given[14]), (num_new, num_heads, repeat, dim))
    keys = carray(floats_at(given[15]), (num_heads, num_places, dim))
    values = carray(floats_at(given[16]), (num_heads, num_places, dim))
    rows = carray(integers_at(given[17]), (num_rows, 6))
    parts = carray(integers_at(given[18]), (num_parts, 3))
    queries = np.empty((repeat, dim), np.float32)
    scores = np.empty((repeat, longest), np.float32)
    sums = np.empty(repeat, np.float32)
    scale = np.float32(1 / np.sqrt(dim))
    total = 0
    for row in range(num_rows):
        total += num_heads * (rows[row, 1] + rows[row, 2]) * rows[row, 2]
    done = 0
    for head in range(num_heads):
        for row in range(num_rows):
            offset, known, added, first = rows[row, 0], rows[row, 1], rows[row, 2], rows[row, 3]
            owner = done * num_threads // total
            done += (known + added) * added
            if owner != thread:
                continue
            for token in range(first, first + added):
                place = offset + known + token - first
                for index in range(dim):
                    keys[head, place, index] = k[token * k_stride + head * dim + index]
                    values[head, place, index] = v[token * v_stride + head * dim + index]
            own = 0
            for token in range(first, first + added):
                length = known + token - first + 1
                for place in range(repeat):
                    for index in range(dim):
                        at = token * q_stride + (head * repeat + place) * dim + index
                        queries[place, index] = q[at] * scale
                for part in range(rows[row, 4], rows[row, 5]):
                    begin, own, place = parts[part, 0], parts[part, 1], parts[part, 2]
                    _score(queries, keys[head, place : place + own - begin], scores[:, begin:own])
                _score(queries, keys[head, offset + own : offset + length], scores[:, own:length])
                for place in range(repeat):
                    sums[place] = _exponentiate_scores(scores[place, :length])
                result = out[token, head]
                result[:] = 0
                for part in range(rows[row, 4], rows[row, 5]):
                    begin, end, place = parts[part, 0], parts[part, 1], parts[part, 2]
                    _add_values(scores[:, begin:end], values[head, place : place + end - begin], result)
                _add_values(scores[:, own:length], values[head, offset + own : offset + length], result)
                for place in range(repeat):
                    for index in range(dim):
                        result[place, index] /= sums[place]


@numba.njit(fastmath=SUMS, error_model="numpy")
def _normalize(x_H: Any, weight_H: Any, epsilon: Any, out_H: Any) -> None:
    total = np.float32(0)
    for index in range(len(x_H)):
        total += x_H[index] * x_H[index]
    scale = np.float32(1 / np.sqrt(total / np.float32(len(x_H)) + epsilon))
    for index in range(len(x_H)):
        out_H[index] = x_H[index] * scale * weight_H[index]


def _normalize_rows(arguments: Any) -> None:
    """Divide each row by the root of its mean square, and multiply it with the weights."""
    thread, num_threads = get_thread(), get_num_threads()
    given = carray(arguments, (6,))
    epsilon = as_float(np.int32(given[2]))
    x = carray(floats_at(given[3]), (given[0], given[1]))
    weight = carray(floats_at(given[4]), (given[1],))
    out = carray(floats_at(given[5]), (given[0], given[1]))
    for row in range(thread, given[0], num_threads):
        _normalize(x[row], weight, epsilon, out[row])


@numba.njit(fastmath=SUMS, error_model="numpy")
def _normalize_back(x_H: Any, weight_H: Any, epsilon: Any, gradient_H: Any, out_H: Any) -> None:
    squares = products = np.float32(0)
    for index in range(len(x_H)):
        squares += x_H[index] * x_H[index]
        products += gradient_H[index] * weight_H[index] * x_H[index]
    mean_square = squares / np.float32(len(x_H)) + epsilon
    scale = np.float32(1 / np.sqrt(mean_square))
    # Where the squares overflow, the norm is 0, and so is its gradient.
    part = np.float32(0) if mean_square == np.inf else products / np.float32(len(x_H)) / mean_square
    for index in range(len(x_H)):
        out_H[index] = scale * (gradient_H[index] * weight_H[index] - x_H[index] * part)


def _normalize_rows_back(arguments: Any) -> None:
    """Compute the gradient of each row from that of its norm."""
    thread, num_threads = get_thread(), get_num_threads()
    given = carray(arguments, (7,))
    epsilon = as_float(np.int32(given[2]))
    x = carray(floats_at(given[3]), (given[0], given[1]))
    weight = carray(floats_at(given[4]), (given[1],))
    gradient = carray(floats_at(given[5]), (given[0], given[1]))
    out = carray(floats_at(given[6]), (given[0], given[1]))
    for row in range(thread, given[0], num_threads):
        _normalize_back(x[row], weight, epsilon, gradient[row], out[row])


@numba.njit(fastmath={"contract"}, error_model="numpy")
def _activate(gate_I: Any, up_I: Any, out_I: Any) -> None:
    for index in range(len(out_I)):
        gate = gate_I[index]
        out_I[index] = gate / (np.float32(1) + _exponentiate(-gate)) * up_I[index]


def _activate_rows(arguments: Any) -> None:
    """Compute silu(gate) * up; each row has the gates and then the ups."""
    thread, num_threads = get_thread(), get_num_threads()
    given = carray(arguments, (4,))
    num_rows, size = given[0], given[1]
    gate_up = carray(floats_at(given[2]), (num_rows, 2 * size))
    out = carray(floats_at(given[3]), (num_rows, size))
    for row in range(thread, num_rows, num_threads):
        _activate(gate_up[row, :size], gate_up[row, size:], out[row])


@numba.njit(fastmath={"contract"}, error_model="numpy")
def _activate_back(gate_I: Any, up_I: Any, gradient_I: Any, to_gate_I: Any, to_up_I: Any) -> None:
    # In three loops, because the compiler does not use vector instructions for one with five arrays.
    for index in range(len(gate_I)):
        to_gate_I[index] = np.float32(1) / (np.float32(1) + _exponentiate(-gate_I[index]))
    for index in range(len(gate_I)):
        to_up_I[index] = gradient_I[index] * (gate_I[index] * to_gate_I[index])
    for index in range(len(gate_I)):
        share = to_gate_I[index]
        slope = share * (np.float32(1) + gate_I[index] * (np.float32(1) - share))
        to_gate_I[index] = gradient_I[index] * up_I[index] * slope


def _activate_rows_back(arguments: Any) -> None:
    """Compute the gradients of the gates and the ups from that of silu(gate) * up."""
    thread, num_threads = get_thread(), get_num_threads()
    given = carray(arguments, (5,))
    num_rows, size = given[0], given[1]
    gate_up = carray(floats_at(given[2]), (num_rows, 2 * size))
    gradient = carray(floats_at(given[3]), (num_rows, size))
    out = carray(floats_at(given[4]), (num_rows, 2 * size))
    for row in range(thread, num_rows, num_threads):
        _activate_back(gate_up[row, :size], gate_up[row, size:], gradient[row], out[row, :size], out[row, size:])


@numba.njit(fastmath=SUMS, error_model="numpy")
def _rotate(first: Any, second: Any, cos: Any, sin: Any, out_first: Any, out_second: Any) -> None:
    for index in range(len(cos)):
        out_first[index] = first[index] * cos[index] - second[index] * sin[index]
        out_second[index] = second[index] * cos[index] + first[index] * sin[index]


def _rotate_rows(arguments: Any) -> None:
    """Apply the rotary embedding to the heads of each token, or rotate them back. Cosine and sine of a pair of numbers are
    next to each other."""
    thread, num_threads = get_thread(), get_num_threads()
    given = carray(arguments, (8,))
    num_tokens, num_heads, half, stride = given[0], given[1], given[2], given[3]
    direction = np.float32(1 - 2 * given[4])
    # The last token's heads may be longer than the distance between two tokens.
    heads = carray(floats_at(given[5]), (max(0, (num_tokens - 1) * stride + 2 * num_heads * half),))
    cos_sin = carray(floats_at(given[6]), (num_tokens, half, 2))
    out = carray(floats_at(given[7]), (num_tokens, num_heads, 2 * half))
    cos, sin = np.empty(half, np.float32), np.empty(half, np.float32)
    for token in range(thread, num_tokens, num_threads):
        for index in range(half):
            cos[index], sin[index] = cos_sin[token, index, 0], direction * cos_sin[token, index, 1]
        for head in range(num_heads):
            at = token * stride + 2 * head * half
            middle = at + half
            result = out[token, head]
            _rotate(heads[at:middle], heads[middle : middle + half], cos, sin, result[:half], result[half:])


@numba.njit(fastmath=SUMS, error_model="numpy")
def _sum_exponentials(logits: Any, best: Any, scale: Any) -> Any:
    total = np.float32(0)
    for index in range(len(logits)):
        total += _exponentiate((logits[index] - best) * scale)
    return total


def _summarize_rows(arguments: Any) -> None:
    """Find the largest logit of each row and its index, and sum each block of exponentials. The exponents are the
    differences to the largest logit, divided by the row's temperature."""
    thread, num_threads = get_thread(), get_num_threads()
    given = carray(arguments, (9,))
    num_rows, size, block, num_blocks = given[0], given[1], given[2], given[3]
    logits = carray(floats_at(given[4]), (num_rows, size))
    temperatures = carray(floats_at(given[5]), (num_rows,))
    bests = carray(floats_at(given[6]), (num_rows,))
    likeliest = carray(integers_at(given[7]), (num_rows,))
    sums = carray(floats_at(given[8]), (num_rows, num_blocks))
    for row in range(thread, num_rows, num_threads):
        values, temperature = logits[row], temperatures[row]
        best, begin = np.float32(-np.inf), 0
        for index in range(num_blocks):
            most = _maximum(values[index * block : (index + 1) * block])
            if most > best:
                best, begin = most, index * block
        likeliest[row] = begin
        while likeliest[row] < min(begin + block, size) - 1 and values[likeliest[row]] != best:
            likeliest[row] += 1
        bests[row] = best
        scale = np.float32(1) / temperature
        for index in range(num_blocks):
            sums[row, index] = _sum_exponentials(values[index * block : (index + 1) * block], best, scale)


attend_rows = compile_for_threads(_attend_rows)
normalize_rows = compile_for_threads(_normalize_rows)
normalize_rows_back = compile_for_threads(_normalize_rows_back)
activate_rows = compile_for_threads(_activate_rows)
activate_rows_back = compile_for_threads(_activate_rows_back)
rotate_rows = compile_for_threads(_rotate_rows)
summarize_rows = compile_for_threads(_summarize_rows)
