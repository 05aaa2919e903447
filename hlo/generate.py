#!/usr/bin/env python3
"""Writes the sample programs of this folder, their inputs and their expected results.

Needed only to regenerate. Made with JAX 0.10.2 and NumPy 2.4.6:

    pip install 'jax[cpu]==0.10.2' && python hlo/generate.py

Most programs are lowered from JAX; the others are edited by hand and only get data. Expected results come from NumPy
or from an unsharded JAX run on one device. Then every file is read back with XLA's own parser, compiled for
virtual CPU devices, run, and compared with them.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import re
import textwrap
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from jaxlib import _jax
from jaxlib import xla_client as xc

HERE = Path(__file__).resolve().parent


@dataclass
class Sample:
    """One program file with its data; `lower` is None for a file written by hand, `on_jax` False where JAX's CPU cannot
    run it right: then NumPy alone says what to expect."""

    file: str
    about: str
    inputs: list
    expected: list
    lower: Callable | None = None
    partitions: int = 1
    replicas: int = 1
    on_jax: bool = True
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def name(self):
        return self.file.rsplit(".", 1)[0]

    @property
    def devices(self):
        return self.partitions * self.replicas

    def layouts(self):
        """(processes, devices per process) that hold the program, up to 4 processes."""
        return [(n, self.devices // n) for n in (1, 2, 4) if self.devices % n == 0]


def mesh(**axes):
    """A mesh over the first devices, e.g. mesh(data=4, model=2)."""
    size = int(np.prod(list(axes.values())))
    devices = np.array(jax.devices()[:size]).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def lowered(fn, the_mesh, in_specs, out_specs, *, donate=(), shardy=False):
    """A function of the inputs that lowers `fn` as one global program with these shardings."""
    named = lambda specs: jax.tree.map(lambda s: NamedSharding(the_mesh, s), specs, is_leaf=lambda s: isinstance(s, P))

    def lower(inputs):
        jax.config.update("jax_use_shardy_partitioner", shardy)
        jitted = jax.jit(fn, in_shardings=named(in_specs), out_shardings=named(out_specs), donate_argnums=donate)
        return jitted.lower(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inputs])

    return lower


def per_device(fn, the_mesh, in_specs, out_specs):
    """`fn` as each device runs it, on shards and with explicit collectives."""
    return jax.shard_map(fn, mesh=the_mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def on_one_device(fn, inputs):
    """The results of an unsharded run, the reference for the sharded one."""
    return [np.asarray(a) for a in jax.tree.leaves(jax.jit(fn)(*inputs))]


def normal(seed, *shape):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(np.float32)


def integers(seed, *shape):
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(np.int32)


def mlp_loss(w1, b1, w2, b2, x, y):
    return jnp.mean((jnp.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2)


def mlp_step(w1, b1, w2, b2, x, y):
    """One step of gradient descent; returns the new weights and the loss."""
    params = (w1, b1, w2, b2)
    loss, grads = jax.value_and_grad(lambda p: mlp_loss(*p, x, y))(params)
    return (*(p - 0.1 * g for p, g in zip(params, grads)), loss)


def mlp_data(batch=32, features=16, hidden=32, outputs=8):
    return [
        normal(1, features, hidden),
        normal(2, hidden),
        normal(3, hidden, outputs),
        normal(4, outputs),
        normal(5, batch, features),
        normal(6, batch, outputs),
    ]


def dp_mlp_step():
    m, data = mesh(data=4), mlp_data()
    specs = (P(), P(), P(), P(), P("data"), P("data"))
    return Sample(
        "dp_mlp_step.hlo",
        "Data-parallel training step of a two-layer perceptron: the batch is split over 4 devices, the weights are on "
        "all of them, so the partitioner sums the gradients with all-reduces.",
        data,
        on_one_device(mlp_step, data),
        lowered(mlp_step, m, specs, (P(), P(), P(), P(), P())),
        partitions=4,
        rtol=1e-5,
        atol=1e-5,
    )


def tp_mlp():
    m = mesh(model=4)
    x, w1, w2 = normal(1, 16, 32), normal(2, 32, 64), normal(3, 64, 32)
    fn = lambda x, w1, w2: jax.nn.gelu(x @ w1) @ w2
    return Sample(
        "tp_mlp.hlo",
        "Tensor-parallel perceptron: the first matrix is split by columns, the second by rows, so one all-reduce at "
        "the end sums the partial products.",
        [x, w1, w2],
        on_one_device(fn, (x, w1, w2)),
        lowered(fn, m, (P(), P(None, "model"), P("model", None)), P()),
        partitions=4,
        rtol=1e-5,
        atol=1e-5,
    )


def dp_tp_mlp_step():
    m, data = mesh(data=4, model=2), mlp_data(batch=64, features=32, hidden=64, outputs=16)
    weights = (P(None, "model"), P("model"), P("model", None), P())
    return Sample(
        "dp_tp_mlp_step.hlo",
        "Training step of a two-layer perceptron on a 4x2 mesh: the batch is split over the axis data, the hidden "
        "layer over the axis model. Activations are summed over model, gradients over data.",
        data,
        on_one_device(mlp_step, data),
        lowered(mlp_step, m, (*weights, P("data"), P("data")), (*weights, P())),
        partitions=8,
        rtol=1e-5,
        atol=1e-5,
    )


def fsdp_mlp():
    m, data = mesh(data=4), mlp_data()

    def fn(w1, b1, w2, b2, x, y):
        shards = (w1, b1, w2, b2)

        def loss(shards):
            full = [lax.all_gather(s, "data", tiled=True) for s in shards]
            return mlp_loss(*full, x, y) / lax.axis_size("data")

        value, grads = jax.value_and_grad(loss)(shards)
        return (*(s - 0.1 * g for s, g in zip(shards, grads)), lax.psum(value, "data"))

    split = P("data")
    specs = ((split,) * 6, (split, split, split, split, P()))
    return Sample(
        "fsdp_mlp.hlo",
        "Fully sharded training step: every device keeps a quarter of each weight, gathers the whole for its part of "
        "the batch (all-gather) and gets back its part of the summed gradient (reduce-scatter).",
        data,
        on_one_device(mlp_step, data),
        lowered(per_device(fn, m, *specs), m, *specs),
        partitions=4,
        rtol=1e-5,
        atol=1e-5,
    )


def pipeline():
    stages, microbatches = 4, 6
    m = mesh(stage=stages)
    w, xs = normal(1, stages, 16, 16), normal(2, microbatches, 8, 16)

    def fn(w, xs):
        stage = lax.axis_index("stage")
        last = stages - 1

        def tick(t, carry):
            received, done = carry
            feed = xs[jnp.minimum(t, microbatches - 1)]
            out = jnp.tanh(jnp.where(stage == 0, feed, received) @ w[0])
            slot = jnp.maximum(t - last, 0)
            keep = (stage == last) & (t >= last)
            done = done.at[slot].set(jnp.where(keep, out, done[slot]))
            return lax.ppermute(out, "stage", [(i, i + 1) for i in range(last)]), done

        start = (jnp.zeros_like(xs[0]), jnp.zeros_like(xs))
        _, done = lax.fori_loop(0, microbatches + last, tick, start)
        return lax.psum(done, "stage")

    expected = xs.astype(np.float64)
    for layer in w:
        expected = np.tanh(expected @ layer)
    specs = ((P("stage"), P()), P())
    return Sample(
        "pipeline.hlo",
        "Pipeline of 4 stages: each device holds one layer, 6 micro-batches move from stage to stage with a "
        "collective-permute inside a while loop.",
        [w, xs],
        [expected.astype(np.float32)],
        lowered(per_device(fn, m, *specs), m, *specs),
        partitions=4,
        rtol=1e-5,
        atol=1e-5,
    )


def moe():
    experts, tokens, width, capacity = 4, 32, 16, 4
    m = mesh(expert=experts)
    x, router, w = normal(1, tokens, width), normal(2, width, experts), normal(3, experts, width, width)

    def fn(x, router, w):
        gates = jax.nn.softmax(x @ router)
        chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), experts)
        place = jnp.cumsum(chosen, axis=0) * chosen - 1
        dispatch = jax.nn.one_hot(place, capacity) * chosen[..., None]
        sent = jnp.einsum("td,tec->ecd", x, dispatch)
        received = lax.all_to_all(sent, "expert", 0, 0, tiled=True)
        answered = jax.nn.relu(received @ w[0])
        returned = lax.all_to_all(answered, "expert", 0, 0, tiled=True)
        return jnp.einsum("ecd,tec,te->td", returned, dispatch, gates)

    expected = np.zeros((tokens, width))
    local = tokens // experts
    for device in range(experts):
        used = [0] * experts
        for t in range(device * local, (device + 1) * local):
            logits = x[t].astype(np.float64) @ router
            gates = np.exp(logits) / np.exp(logits).sum()
            expert = int(np.argmax(gates))
            if used[expert] < capacity:
                expected[t] = np.maximum(x[t].astype(np.float64) @ w[expert], 0) * gates[expert]
            used[expert] += 1
    specs = ((P("expert"), P(), P("expert")), P("expert"))
    return Sample(
        "moe.hlo",
        "Mixture of 4 experts, one per device: tokens go to the expert their router chooses and come back, each way "
        "with an all-to-all; tokens above an expert's capacity are dropped.",
        [x, router, w],
        [expected.astype(np.float32)],
        lowered(per_device(fn, m, *specs), m, *specs),
        partitions=4,
        rtol=1e-5,
        atol=1e-5,
    )


def ring_attention():
    ring, length, heads, width = 4, 32, 2, 8
    m = mesh(sequence=ring)
    q, k, v = (normal(seed, length, heads, width) for seed in (1, 2, 3))

    def fn(q, k, v):
        def turn(_, carry):
            k, v, top, total, out = carry
            scores = jnp.einsum("qhd,khd->hqk", q, k) / np.float32(np.sqrt(width))
            new_top = jnp.maximum(top, scores.max(-1))
            weights = jnp.exp(scores - new_top[..., None])
            scale = jnp.exp(top - new_top)
            total = total * scale + weights.sum(-1)
            out = out * scale[..., None] + jnp.einsum("hqk,khd->hqd", weights, v)
            around = [(i, (i + 1) % ring) for i in range(ring)]
            k, v = (lax.ppermute(a, "sequence", around) for a in (k, v))
            return k, v, new_top, total, out

        rows = (heads, q.shape[0])
        start = (k, v, jnp.full(rows, -jnp.inf), jnp.zeros(rows), jnp.zeros((*rows, width)))
        *_, total, out = lax.fori_loop(0, ring, turn, start)
        return jnp.einsum("hqd->qhd", out / total[..., None])

    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) / np.sqrt(width)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    specs = ((P("sequence"),) * 3, P("sequence"))
    return Sample(
        "ring_attention.hlo",
        "Ring attention: the sequence is split over 4 devices, keys and values travel around the ring with two "
        "collective-permutes per turn, and the softmax is accumulated on the way.",
        [q, k, v],
        [np.einsum("hqk,khd->qhd", weights, v).astype(np.float32)],
        lowered(per_device(fn, m, *specs), m, *specs),
        partitions=4,
        rtol=1e-5,
        atol=1e-5,
    )


def scan_layers():
    layers, width, hidden, batch = 3, 16, 32, 8
    m = mesh(data=2, model=2)
    w1, w2 = normal(1, layers, width, hidden) * 0.3, normal(2, layers, hidden, width) * 0.3
    x, y = normal(3, batch, width), normal(4, batch, width)

    def fn(w1, w2, x, y):
        def loss(weights):
            layer = lambda h, w: (h + jnp.tanh(h @ w[0]) @ w[1], None)
            return jnp.mean((lax.scan(layer, x, weights)[0] - y) ** 2)

        value, grads = jax.value_and_grad(loss)((w1, w2))
        return w1 - 0.1 * grads[0], w2 - 0.1 * grads[1], value

    weights = (P(None, None, "model"), P(None, "model", None))
    return Sample(
        "scan_layers.hlo",
        "Training step of 3 residual layers as a scan on a 2x2 mesh: the all-reduces of the forward and of the "
        "backward pass are inside while loops.",
        [w1, w2, x, y],
        on_one_device(fn, (w1, w2, x, y)),
        lowered(fn, m, (*weights, P("data"), P("data")), (*weights, P())),
        partitions=4,
        rtol=1e-5,
        atol=1e-5,
    )


def replica_all_reduce():
    x = integers(1, 4, 8)
    scaled = [x * (r + 1) for r in range(4)]
    return Sample(
        "replica_all_reduce.hlo",
        "",
        [x],
        [sum(scaled), np.maximum(scaled[0] + scaled[1], scaled[2] + scaled[3]), np.stack(scaled)],
        replicas=4,
    )


def replicas_partitions():
    x = integers(1, 8, 6)
    return Sample("replicas_partitions.hlo", "", [x], [x * 3, (x * 3).sum(0, dtype=np.int32)], partitions=2, replicas=2)


def ragged_all_to_all():
    """Inputs and results of 4 replicas, stacked."""
    sizes = np.array([[2, 0, 3, 1], [1, 4, 0, 3], [0, 0, 2, 0], [5, 1, 1, 1]], np.int32)
    rows = integers(1, 4, 8, 2)
    arrived = np.full((4, 16, 2), -1, np.int32)
    for target in range(4):
        pieces = [rows[source][sizes[source, :target].sum() :][: sizes[source, target]] for source in range(4)]
        arrived[target, : sizes[:, target].sum()] = np.concatenate(pieces)
    return Sample("ragged_all_to_all.hlo", "", [rows, sizes], [arrived, sizes.T.copy()], replicas=4, on_jax=False)


def collective_broadcast():
    x = integers(1, 4, 4, 8)
    in_pairs = x[[2, 1, 2, 1]]
    to_all = np.stack([in_pairs[3] + x[3]] * 4)
    return Sample("collective_broadcast.hlo", "", [x], [in_pairs, to_all], replicas=4, on_jax=False)


def async_collectives():
    x = integers(1, 4, 4, 8)
    square = x * x
    total = np.stack([x[0] + x[1]] * 2 + [x[2] + x[3]] * 2)
    rows = np.stack([square.reshape(16, 8)] * 4)
    scattered = (2 * square).sum(0, dtype=np.int32).reshape(4, 1, 8)
    expected = [total, rows, np.roll(-total, 1, 0), scattered, total.swapaxes(0, 1).copy()]
    return Sample("async_collectives.hlo", "", [x], expected, replicas=4, on_jax=False)


def nan_min_max():
    x = normal(1, 4, 4, 8)
    x[np.random.default_rng(2).random(x.shape) < 0.1] = np.nan
    smallest = np.stack([np.min(x, 0)] * 4)
    largest = np.stack([np.maximum(x[0], x[1])] * 2 + [np.maximum(x[2], x[3])] * 2)
    rows = np.max(x, 0).reshape(4, 1, 8)
    return Sample("nan_min_max.hlo", "", [x], [smallest, largest, rows], replicas=4, on_jax=False)


def uneven():
    x, w = integers(1, 10, 6).astype(np.float32), integers(2, 6, 7).astype(np.float32)
    return Sample("uneven.hlo", "", [x, w], [x @ w, (x @ w).sum(0)], partitions=4)


def propagation():
    x, w = normal(1, 16, 8), normal(2, 8, 12)
    return Sample(
        "propagation.hlo",
        "",
        [x, w],
        [np.tanh(x.astype(np.float64) @ w).astype(np.float32)],
        partitions=4,
        rtol=1e-5,
        atol=1e-5,
    )


def bf16_matmul():
    m = mesh(rows=2, inner=2)
    a, b = (normal(s, 32, 32).astype(ml_dtypes.bfloat16) for s in (1, 2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return Sample(
        "bf16_matmul.hlo",
        "bfloat16 product on a 2x2 mesh, split in rows and in the inner dimension, so partial products are summed "
        "with an all-reduce. In .npz files bfloat16 travels as raw two-byte elements.",
        [a, b],
        [exact.astype(ml_dtypes.bfloat16)],
        lowered(lambda a, b: a @ b, m, (P("rows", "inner"), P("inner", None)), P("rows", None)),
        partitions=4,
        rtol=2e-2,
        atol=2e-2,
    )


def donated_state():
    m = mesh(data=2)
    w, momentum, x, y = normal(1, 16, 8), normal(2, 16, 8), normal(3, 16, 16), normal(4, 16, 8)

    def fn(w, momentum, x, y):
        grad = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        momentum = 0.9 * momentum + grad
        return w - 0.1 * momentum, momentum

    return Sample(
        "donated_state.hlo",
        "Training step with momentum whose state is donated: the header's input_output_alias lets XLA write the new "
        "weights and momentum over the old ones.",
        [w, momentum, x, y],
        on_one_device(fn, (w, momentum, x, y)),
        lowered(fn, m, (P(), P(), P("data"), P("data")), (P(), P()), donate=(0, 1)),
        partitions=2,
        rtol=1e-5,
        atol=1e-5,
    )


def subgroups():
    m = mesh(x=4, y=2)
    a = integers(1, 16, 16)

    def fn(a):
        return (
            lax.psum(a, "x"),
            lax.all_gather(a, "y", axis=1, tiled=True),
            lax.psum_scatter(a, "x", scatter_dimension=0, tiled=True),
            lax.pmax(a, ("x", "y")),
            lax.all_to_all(a, "y", split_axis=0, concat_axis=1, tiled=True),
            lax.ppermute(a, "x", [(i, (i + 1) % 4) for i in range(4)]),
        )

    rows, halves = a.reshape(4, 4, 16), a.reshape(4, 4, 2, 8)
    expected = [
        rows.sum(0),
        a,
        rows.sum(0),
        halves.max((0, 2)),
        np.block([[rows[x, 2 * y : 2 * y + 2] for y in range(2)] for x in range(4)]),
        np.roll(rows, 1, axis=0).reshape(16, 16),
    ]
    specs = ((P("x", "y"),), (P(None, "y"), P("x"), P("x", "y"), P(), P("x", "y"), P("x", "y")))
    return Sample(
        "subgroups.hlo",
        "A 4x2 mesh on which every kind of collective runs in groups along one axis: all-reduce over x, all-gather "
        "over y, reduce-scatter over x, maximum over both, all-to-all over y, a shift around x.",
        [a],
        [e.astype(np.int32) for e in expected],
        lowered(per_device(fn, m, *specs), m, *specs),
        partitions=8,
    )


def conditional():
    m = mesh(data=2)
    step, x = np.int32(4), integers(1, 8, 16).astype(np.float32)

    def fn(step, x):
        average = lambda x: lax.psum(x, "data") / 2
        return lax.cond(lax.rem(step, np.int32(4)) == 0, average, lambda x: x, x)

    specs = ((P(), P("data")), P("data"))
    averaged = (x[:4] + x[4:]) / 2
    return Sample(
        "conditional.hlo",
        "An all-reduce inside a branch: parameters are averaged over the devices only at every fourth step.",
        [step, x],
        [np.concatenate([averaged, averaged])],
        lowered(per_device(fn, m, *specs), m, *specs),
        partitions=2,
    )


def mlp_on_2x2(file, about, shardy):
    m, data = mesh(data=2, model=2), mlp_data()[:5]
    fn = lambda w1, b1, w2, b2, x: jnp.tanh(x @ w1 + b1) @ w2 + b2
    specs = (P(None, "model"), P("model"), P("model", None), P(), P("data"))
    return Sample(
        file,
        about,
        data,
        on_one_device(fn, data),
        lowered(fn, m, specs, P("data"), shardy=shardy),
        partitions=4,
        rtol=1e-5,
        atol=1e-5,
    )


def shardy_mlp():
    about = (
        "Perceptron on a 2x2 mesh as JAX lowers it for the Shardy partitioner: the shardings that count are in the "
        "xla.sdy attributes."
    )
    return mlp_on_2x2("shardy_mlp.hlo", about, True)


def shardy_stablehlo():
    about = "Perceptron on a 2x2 mesh as StableHLO text with Shardy's shardings, as JAX's lower().as_text() prints it."
    return mlp_on_2x2("shardy_stablehlo.mlir", about, True)


def gspmd_stablehlo():
    about = "Perceptron on a 2x2 mesh as StableHLO text with GSPMD's shardings (the attribute mhlo.sharding)."
    return mlp_on_2x2("gspmd_stablehlo.mlir", about, False)


SAMPLES = [
    dp_mlp_step,
    tp_mlp,
    dp_tp_mlp_step,
    fsdp_mlp,
    pipeline,
    moe,
    ring_attention,
    scan_layers,
    replica_all_reduce,
    replicas_partitions,
    ragged_all_to_all,
    collective_broadcast,
    async_collectives,
    nan_min_max,
    uneven,
    propagation,
    bf16_matmul,
    donated_state,
    subgroups,
    conditional,
    shardy_mlp,
    shardy_stablehlo,
    gspmd_stablehlo,
]


def comment(sample):
    """The head of a program file: what it shows and how to run it."""
    lines = textwrap.wrap(sample.about, 110)
    data = f"hlo/data/{sample.name}"
    tolerance = f" --rtol {sample.rtol} --atol {sample.atol}" if sample.rtol else ""
    processes = sample.layouts()[-1][0]
    lines += [
        "",
        f"    spmd-run -n {processes} hlo/{sample.file} \\",
        f"        --input {data}.in.npz --expect {data}.out.npz{tolerance}".replace("e-0", "e-"),
    ]
    return "".join(f"// {line}".rstrip() + "\n" for line in lines)


def program_text(sample):
    """The lowered program as text, with the device counts in the header and without what changes from run to run."""
    low = sample.lower(sample.inputs)
    if sample.file.endswith(".mlir"):
        return comment(sample) + re.sub(r"\Amodule @\w+", f"module @{sample.name}", low.as_text())
    text = low.compiler_ir("hlo").as_hlo_text()
    head = rf"HloModule {sample.name}\g<1>, num_partitions={sample.partitions}"
    text = re.sub(r"\AHloModule [^,\n]*([^\n]*)", head, text)
    return comment(sample) + re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def from_comment(sample):
    """The description that a hand-written file starts with."""
    lines = []
    for line in (HERE / sample.file).read_text().splitlines():
        if line.rstrip() == "//" or not line.startswith("//"):
            break
        lines.append(line[2:].strip())
    return " ".join(lines)


def save(path, prefix, arrays):
    """An .npz of prefix0, prefix1, …; NumPy has no bfloat16, so it is saved as raw two-byte elements."""
    assert all(np.asarray(a).dtype.itemsize <= 4 for a in arrays), "a 64-bit array that no program asks for"
    raw = lambda a: a.view("V2") if a.dtype == ml_dtypes.bfloat16 else a
    np.savez(path, **{f"{prefix}{i}": raw(np.asarray(a)) for i, a in enumerate(arrays)})


def shard_indices(op_sharding, shape, devices):
    """The index range of every device's shard, which may reach over the edge of the array."""
    sharding = xc.HloSharding.from_proto(op_sharding) if op_sharding is not None else None
    if sharding is None or sharding.is_replicated():
        return [tuple(slice(0, d) for d in shape)] * devices
    assert sharding.is_tiled(), sharding
    tiles = sharding.tile_assignment_dimensions()[: len(shape)]
    order = np.array(sharding.tile_assignment_devices()).reshape(*tiles, -1)
    sizes = [-(-d // t) for d, t in zip(shape, tiles)]
    indices = [None] * devices
    for position in np.ndindex(*order.shape):
        indices[order[position]] = tuple(slice(p * s, (p + 1) * s) for p, s in zip(position, sizes))
    return indices


def load(sample):
    """The program as XLA's own parsers read the file, as StableHLO for JAX's compiler."""
    text = (HERE / sample.file).read_text()
    if sample.file.endswith(".mlir"):
        return text, "sdy." in text
    module = xc.hlo.hlo_module_from_text(text)
    return _jax.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto()), "xla.sdy." in text


def header_flags(sample, key):
    """A list of booleans of the module header, e.g. allow_spmd_sharding_propagation_to_output={true}."""
    found = re.search(rf"{key}={{([^}}]*)}}", (HERE / sample.file).read_text())
    return [flag.strip() == "true" for flag in found.group(1).split(",")] if found else [False]


def run(sample):
    """Compiles and runs the file on virtual CPU devices; returns the global results."""
    devices = jax.devices()[: sample.devices]
    module, shardy = load(sample)
    options = xc.CompileOptions()
    options.num_replicas, options.num_partitions = sample.replicas, sample.partitions
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = sample.replicas, sample.partitions
    build.use_spmd_partitioning, build.use_shardy_partitioner = True, shardy
    for target in ("output", "parameters"):
        key = f"allow_spmd_sharding_propagation_to_{target}"
        setattr(build, key, header_flags(sample, key))
    assignment = np.arange(sample.devices).reshape(sample.replicas, sample.partitions)
    build.device_assignment = xc.DeviceAssignment.create(assignment)
    compiled = devices[0].client.compile_and_load(module, xc.DeviceList(tuple(devices)), options)

    everywhere = NamedSharding(Mesh(np.array(devices), "all"), P())
    arguments = []
    for array, sharding in zip(sample.inputs, compiled.get_parameter_shardings() or repeat(None)):
        array = np.asarray(array)
        shards = []
        for device, index in zip(devices, shard_indices(sharding, array.shape, sample.partitions) * sample.replicas):
            piece = array[index]
            shard = np.zeros([s.stop - s.start for s in index], array.dtype)
            shard[tuple(slice(0, n) for n in piece.shape)] = piece
            shards.append(jax.device_put(shard, device))
        arguments.append(jax.make_array_from_single_device_arrays(shards[0].shape, everywhere, shards))
    outputs = compiled.execute_sharded(arguments).disassemble_into_single_device_arrays()

    results = []
    for pieces, like, sharding in zip(outputs, sample.expected, compiled.get_output_shardings() or repeat(None)):
        result = np.zeros(like.shape, pieces[0].dtype)
        indices = shard_indices(sharding, like.shape, sample.partitions)
        for piece, index in reversed(list(zip(pieces, indices * sample.replicas))):
            inside = result[index].shape
            result[index] = np.asarray(piece)[tuple(slice(0, n) for n in inside)]
        results.append(result)
    return results, compiled.hlo_modules()[0].to_string()


def check(sample):
    """Runs the file and compares its results; says which collectives the compiled program has."""
    if not sample.on_jax:
        xc.hlo.hlo_module_from_text((HERE / sample.file).read_text())
        return print(f"{sample.file:24} {sample.devices} devices: parsed; JAX's CPU cannot run it")
    if sample.replicas > 1 and sample.partitions > 1:
        load(sample)
        return print(f"{sample.file:24} {sample.devices} devices: parsed; JAX runs replicas or partitions, not both")
    results, optimized = run(sample)
    assert len(results) == len(sample.expected)
    for got, want in zip(results, sample.expected):
        assert got.dtype == want.dtype
        got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=sample.rtol, atol=sample.atol, err_msg=sample.file)
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    used = sorted(set(re.findall(rf" ({kinds})(?:-start)?\(", optimized)))
    print(f"{sample.file:24} {sample.devices} devices: equal; runs {', '.join(used) or 'no collective'}")


def main():
    assert jax.__version__ == "0.10.2", f"made with JAX 0.10.2, this is {jax.__version__}"
    (HERE / "data").mkdir(exist_ok=True)
    table = ["name\tfile\tpartitions\treplicas\trtol\tatol\tlayouts\tabout"]
    for make in SAMPLES:
        sample = make()
        if sample.lower:
            (HERE / sample.file).write_text(program_text(sample))
        else:
            sample.about = from_comment(sample)
        save(HERE / "data" / f"{sample.name}.in.npz", "arg", sample.inputs)
        save(HERE / "data" / f"{sample.name}.out.npz", "out", sample.expected)
        check(sample)
        layouts = ",".join(f"{n}x{d}" for n, d in sample.layouts())
        table.append(
            f"{sample.name}\t{sample.file}\t{sample.partitions}\t{sample.replicas}\t{sample.rtol}\t{sample.atol}"
            f"\t{layouts}\t{sample.about}"
        )
    (HERE / "samples.tsv").write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
