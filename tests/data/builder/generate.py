"""Writes jax_values.npz: what JAX 0.10.2 computes on CPU for the programs of tests/builder.rs.

Arrays are named CASE.inI and CASE.outI. Run: python generate.py
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import numpy as np

import jax
import jax.numpy as jnp
from jax import lax, nn, random
from jax.sharding import Mesh, PartitionSpec as P

cases = {}
rng = np.random.default_rng(0)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def case(name, function, *inputs):
    outputs = jax.jit(function)(*inputs)
    if not isinstance(outputs, (tuple, list)):
        outputs = [outputs]
    for kind, arrays in [("in", inputs), ("out", outputs)]:
        for index, array in enumerate(arrays):
            cases[f"{name}.{kind}{index}"] = np.asarray(array)


def with_gradients(loss, count):
    """The loss and its gradients by the first arguments."""
    def function(*inputs):
        value, gradients = jax.value_and_grad(loss, argnums=tuple(range(count)))(*inputs)
        return (value, *gradients)
    return function


def weighted(*values):
    """A scalar that depends on every element in its own way."""
    return sum(jnp.sum(v * jnp.cos(jnp.arange(v.size, dtype=v.dtype)).reshape(v.shape)) for v in values)


def mlp(w1, b1, w2, b2, x, y):
    return jnp.mean((jnp.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2)


case("mlp", with_gradients(mlp, 4), floats(6, 8), floats(8), floats(8, 3), floats(3), floats(5, 6), floats(5, 3))


def layer_norm(x, scale):
    centered = x - jnp.mean(x, -1, keepdims=True)
    return centered * lax.rsqrt(jnp.mean(centered * centered, -1, keepdims=True) + 1e-5) * scale


def transformer(embedding, scale1, qkv, projection, scale2, up, down, tokens, targets):
    """One block of a decoder, two heads of four, and its loss."""
    x = jnp.take(embedding, tokens, axis=0, mode="clip")
    h = layer_norm(x, scale1)
    q, k, v = jnp.split((h @ qkv).reshape(2, 6, 2, 12), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0
    mask = jnp.tril(jnp.ones((6, 6), bool))
    weights = nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(2, 6, 8) @ projection
    x = x + nn.gelu(layer_norm(x, scale2) @ up) @ down
    log_probabilities = nn.log_softmax(x @ embedding.T, axis=-1)
    return -jnp.mean(jnp.sum(log_probabilities * nn.one_hot(targets, 11), axis=-1))


tokens = rng.integers(0, 11, (2, 6)).astype(np.int32)
targets = rng.integers(0, 11, (2, 6)).astype(np.int32)
case("transformer", with_gradients(transformer, 7), floats(11, 8), 1 + 0.1 * floats(8), 0.5 * floats(8, 24),
     0.5 * floats(8, 8), 1 + 0.1 * floats(8), 0.5 * floats(8, 16), 0.5 * floats(16, 8), tokens, targets)


def elementwise(x, y):
    p = jnp.abs(y) + 0.5
    return weighted(
        jnp.exp(x), jnp.expm1(x), jnp.log(p), jnp.log1p(p), jnp.sqrt(p), lax.rsqrt(p), jnp.cbrt(p), jnp.sin(x), jnp.cos(x),
        jnp.tan(x), jnp.tanh(x), nn.sigmoid(x), lax.erf(x), p ** x, x / p, x * y - y, jnp.maximum(x, y), jnp.minimum(x, y),
        jnp.arctan2(x, y), lax.rem(x, p), jnp.abs(x), jnp.where(x > y, x * 3, y * 2), jnp.floor(x) * y, nn.relu(x), nn.silu(x),
        jnp.clip(x, -0.5, 0.5))


case("elementwise", with_gradients(elementwise, 2), floats(4, 5), floats(4, 5))


def movement(x, y):
    return weighted(
        x.reshape(5, 12), x.transpose(2, 0, 1), x[1:3, ::2, 1:], lax.pad(x, jnp.float32(0), ((1, -1, 0), (0, 2, 1), (-1, 1, 2))),
        jnp.concatenate([x, y, x * 2], axis=1), x[::-1, :, ::-1], jnp.broadcast_to(x[:, :1], (2, 4, 3, 5)) * y[0, 0],
        lax.dynamic_slice(x, (1, 7, 0), (2, 2, 3)), lax.dynamic_update_slice(x * 3, y[:2, :2], (2, 1, 0)),
        jnp.squeeze(x[:, 1:2], 1), jnp.stack([x, y], axis=2))


case("movement", with_gradients(movement, 2), floats(4, 3, 5), floats(4, 3, 5))


def reductions(x, ties):
    return weighted(
        x.sum((0, 2)), x.mean(1), x.max(2), x.min((0, 1)), nn.logsumexp(x, axis=1), nn.softmax(x, axis=0),
        nn.log_softmax(x, axis=2), ties.max(1), ties.min(0), x.sum())


case("reductions", with_gradients(reductions, 2), floats(3, 4, 5), rng.integers(0, 3, (4, 6)).astype(np.float32))


def products(a, b, c):
    return weighted(
        lax.dot_general(a, b, (((1, 3), (2, 0)), ((0,), (3,)))), jnp.einsum("abcd,cfbi->fdai", a, c), a @ b[:, 0, 0, 0],
        jnp.einsum("abcd,cfbi->d", a, c))


case("products", with_gradients(products, 3), floats(2, 3, 4, 5), floats(5, 6, 3, 2), floats(4, 6, 3, 4))


def indexing(table, updates, indices):
    picked = jnp.take(table, indices, axis=1, mode="clip")
    numbers = lax.ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    return weighted(picked, lax.scatter_add(table, indices.reshape(-1, 1), updates, numbers, mode="drop"))


case("indexing", with_gradients(indexing, 2), floats(4, 6, 2)[..., 0], floats(6, 6), np.array([[0, 3, 2], [3, 1, 0]], np.int32))


def convolution(x, kernel):
    dims = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, kernel, (2, 1), ((1, 0), (0, 2)), rhs_dilation=(1, 2), dimension_numbers=dims)
    z = lax.conv_general_dilated(x, kernel, (1, 2), ((2, 1), (-1, 3)), lhs_dilation=(2, 1), dimension_numbers=dims)
    return weighted(y, z)


case("convolution", with_gradients(convolution, 2), floats(2, 6, 8, 3), floats(3, 2, 3, 4))


def forward(x, kernel, integers):
    return (
        lax.conv_general_dilated(x, kernel, (2, 1), ((1, 0), (0, 2)), rhs_dilation=(1, 2),
                                 dimension_numbers=("NHWC", "HWIO", "NHWC")),
        jnp.sort(x, axis=1), jnp.argsort(x, axis=-1).astype(jnp.int32), jnp.argmax(x, axis=2).astype(jnp.int32),
        jnp.cumsum(x, axis=1), lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        nn.one_hot(integers, 5), integers.max(), integers % 3, jnp.any(integers > 3, 0), jnp.all(integers > 0), x.prod(3),
        (x.astype(jnp.bfloat16).sum(0)).astype(jnp.float32), integers >> 1, x.astype(jnp.int32))


case("forward", forward, floats(2, 6, 8, 3), floats(3, 2, 3, 4), rng.integers(0, 7, (3, 4)).astype(np.int32))


def control(x, n):
    i, y = lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1]) * x), (jnp.int32(0), x))
    z = lax.fori_loop(0, 3, lambda i, s: s + x * i, y)
    return i, y, z, lax.cond(n > 2, lambda: x + y, lambda: x - z)


case("control", control, floats(3), np.int32(5))


def numbers():
    key = random.PRNGKey(7 + (1 << 33)) if jax.config.jax_enable_x64 else random.PRNGKey(7)
    first, second = random.split(key)
    return (
        first, second, random.fold_in(key, 3), random.bits(first, (3, 5)), random.uniform(first, (4, 7)),
        random.normal(second, (50, 8)))


case("random", numbers)



def scans(w, state, inputs, scale):
    def cell(state, input):
        next = jnp.tanh(w @ state + input) * scale
        return next, (next.sum(), input * next)

    last, (sums, products) = lax.scan(cell, state, inputs)
    power = lax.fori_loop(2, 5, lambda i, s: jnp.sin(s) * s + i * scale, state)

    def outer(state, input):
        inner, all = lax.scan(lambda s, x: (jnp.cos(s * x) + w[0], s * s), state, jnp.stack([input, input * scale]))
        return inner * state, all

    nested, squares = lax.scan(outer, state, inputs)
    chosen, _ = lax.scan(lambda s, x: (lax.cond(x[0] > 0, lambda: jnp.exp(-s) * w[1], lambda: s * x), None), state, inputs)
    return weighted(last, sums, products, power, nested, squares, chosen)


case("scans", with_gradients(scans, 4), 0.4 * floats(4, 4), floats(4), floats(6, 4), np.float32(0.9))


def branches(x, y, z, n):
    both = [lax.cond(n > k, lambda: jnp.sin(x) * y, lambda: jnp.exp(y) / (1 + z * z)) for k in (2, 9)]
    return weighted(*both)


case("branches", with_gradients(branches, 3), floats(3), floats(3), floats(3), np.int32(5))


def orders(x, y, zeros):
    first, second = lax.sort((x, y), dimension=1, num_keys=1)
    top, at = lax.top_k(x, 2)
    return weighted(
        jnp.sort(x, 0), first, second * y, top, at.astype(jnp.float32), jnp.cumsum(x, 1), zeros.prod(1), zeros.prod(), y.prod((0, 2)),
        lax.reduce_window(y, 0.0, lax.add, (1, 2, 2), (1, 2, 1), ((0, 0), (1, 0), (0, 2))))


case("orders", with_gradients(orders, 3), floats(3, 4, 5), floats(3, 4, 5), rng.integers(0, 4, (5, 4)).astype(np.float32))


def outside(table, updates, indices):
    rows = table[jnp.clip(indices, 0, 3)]
    numbers = lax.ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    added = lax.scatter_add(table, indices[:, None], updates * 2, numbers, mode="drop")
    pairs = jnp.stack([indices, indices - 1], 1)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(), inserted_window_dims=(0, 1), scatter_dims_to_operand_dims=(0, 1))
    single = lax.scatter_add(table, pairs, updates[:, 0], numbers, mode="drop")
    return weighted(rows, added, single)


case("outside", with_gradients(outside, 2), floats(4, 3), floats(6, 3), np.array([-2, 0, 3, 1, 7, 1], np.int32))

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))


def manual(x, w, scale):
    def part(x, w, scale):
        place = lax.axis_index("y").astype(jnp.float32)
        h = jnp.tanh(x @ w * scale) + place
        whole = lax.all_gather(h, "x", axis=0, tiled=True)
        share = lax.psum_scatter(whole * whole, "y", scatter_dimension=1, tiled=True)
        moved = lax.ppermute(jnp.sin(h), "x", [(0, 1)])
        turned = lax.all_to_all(h, "y", split_axis=0, concat_axis=1, tiled=True)

        def ring(i, s):
            return lax.ppermute(s * h[0], "y", [(0, 1), (1, 0)]) * jnp.cos(s)

        looped = lax.fori_loop(0, 3, ring, h[1])
        return lax.psum(h, "y").sum(0), share, moved, turned, lax.pmean(looped, ("x", "y"))

    specs = (P("x", None), P(None, "y"), P())
    results = (P("x"), P(None, "y"), P("x", "y"), P("x", "y"), P())
    return weighted(*jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=results, check_vma=False)(x, w, scale))


case("manual", with_gradients(manual, 3), floats(4, 3), floats(3, 8), np.float32(0.7))


def partial(x, w, scale):
    def part(x, w, scale):
        h = jnp.tanh(x @ w * scale) + lax.axis_index("x").astype(jnp.float32)

        def ring(i, s):
            return lax.ppermute(s * h[0], "x", [(0, 1), (1, 0)]) * jnp.cos(s)

        def cell(s, row):
            next = jnp.sin(s * row) + lax.pmean(row, "x")
            return next, next * row

        looped = lax.fori_loop(0, 3, ring, h[1])
        last, all = lax.scan(cell, looped, h)
        whole = lax.all_gather(h, "x", axis=0, tiled=True)
        share = lax.psum_scatter(whole * whole, "x", scatter_dimension=1, tiled=True)
        turned = lax.all_to_all(jnp.sin(h), "x", split_axis=1, concat_axis=0, tiled=True)
        return (lax.psum(h, "x").sum(0), jnp.exp(-h * h), lax.pmean(last, "x"), all.sum(1), share, turned)

    specs, results = (P("x", None), P(), P()), (P(), P("x"), P(), P("x"), P(None, "x"), P("x"))
    return weighted(*jax.shard_map(
        part, mesh=mesh, in_specs=specs, out_specs=results, axis_names={"x"}, check_vma=False)(x, w, scale))


case("partial", with_gradients(partial, 3), floats(4, 3), floats(3, 8), np.float32(0.7))


def grouped(x, kernel, depthwise, shared):
    dims = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, kernel, (2, 1), ((1, 0), (0, 2)), rhs_dilation=(1, 2), dimension_numbers=dims,
                                 feature_group_count=2)
    z = lax.conv_general_dilated(x, depthwise, (1, 2), ((2, 1), (-1, 3)), lhs_dilation=(2, 1), dimension_numbers=dims,
                                 feature_group_count=4)
    u = lax.conv_general_dilated(x, shared, (2, 1), ((1, 0), (0, 2)), dimension_numbers=dims, batch_group_count=2)
    return weighted(y, z, u)


case("grouped", with_gradients(grouped, 4), floats(4, 6, 8, 4), floats(3, 2, 2, 6), floats(3, 2, 1, 8), floats(2, 3, 4, 6))


def windows(x, ties):
    values = []
    for of in (x, ties):
        largest = lax.reduce_window(of, -jnp.inf, lax.max, (1, 3, 2), (1, 2, 1), ((0, 0), (1, 1), (0, 1)))
        smallest = lax.reduce_window(of, jnp.inf, lax.min, (2, 2, 2), (1, 2, 2), "VALID")
        values += [largest, smallest]
    return weighted(*values)


case("windows", with_gradients(windows, 2), floats(3, 6, 5), rng.integers(1, 4, (3, 6, 5)).astype(np.float32))

np.savez_compressed("jax_values.npz", **cases)
print(f"{len(cases)} arrays")
