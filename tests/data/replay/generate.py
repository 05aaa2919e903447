#!/usr/bin/env python3
"""Writes the compiled dumps of this folder, their inputs and JAX's results.

Needed only to regenerate. Made with JAX 0.10.2 and NumPy 2.4.6:

    pip install 'jax[cpu]==0.10.2' && python tests/data/replay/generate.py

A dump of several partitions as text keeps no sharding of its results, so what is expected of it is the first device's;
a dump as protobuf keeps them.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

# Dumps name source files; their folders are nobody's business.
jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")

HERE = Path(__file__).resolve().parent
random = np.random.default_rng(0)
rows = []


def floats(*shape):
    return random.standard_normal(shape).astype(np.float32)


def without_sources(text):
    """The dump without what tells where the program was written."""
    text = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(\d+ .*\n)*", "", text)
    return re.sub(r", metadata=\{[^{}]*\}", "", text)


def save(name, jitted, arguments, devices=(), form="hlo", tolerance=1e-5):
    compiled = jitted.lower(*arguments).compile()
    results = jax.tree.leaves(jitted(*arguments))
    if form == "hlo":
        program = without_sources(compiled.as_text()).encode()
        results = [result.addressable_data(0) for result in results]
    else:
        module = compiled.runtime_executable().hlo_modules()[0]
        program = module.as_serialized_hlo_module_proto()
    (HERE / f"{name}.{form}").write_bytes(program)
    numbered = lambda prefix, arrays: {f"{prefix}{i}": np.asarray(array) for i, array in enumerate(arrays)}
    np.savez_compressed(HERE / f"{name}.in.npz", **numbered("arg", jax.tree.leaves(arguments)))
    np.savez_compressed(HERE / f"{name}.out.npz", **numbered("out", results))
    count = int(np.prod(devices)) if devices else 1
    rows.append((name, f"{name}.{form}", str(count), str(tolerance)))


def one(name, function, *arguments, **options):
    """A program for one device."""
    save(name, jax.jit(function, keep_unused=True), arguments, **options)


def sharded(name, function, devices, arguments, inputs, outputs, manual=False, **options):
    """A program for a mesh with axes x and, if it has two, y."""
    axes = ("x", "y")[: len(devices)]
    mesh = Mesh(np.array(jax.devices()[: np.prod(devices)]).reshape(devices), axes, (AxisType.Auto,) * len(axes))
    if manual:
        function = jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
    place = lambda specs: jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda it: isinstance(it, P))
    jitted = jax.jit(function, in_shardings=place(inputs), out_shardings=place(outputs))
    save(name, jitted, arguments, devices, **options)


def layouts(x, a, b):
    return x.transpose(4, 0, 3, 1, 2).reshape(6, -1).T.reshape(4, 3, -1) + 1, (a.T @ b.T).T, jnp.einsum("ij,jk->ki", b, a)


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def perceptron(w, v, x):
    return ((jnp.tanh(x @ w) @ v) ** 2).mean()


def recurrent(w, x):
    return (lax.scan(lambda c, z: (jnp.tanh(c @ w + z), None), jnp.zeros((3, 4), jnp.float32), x)[0] ** 2).sum()


def convolution(x, k):
    return (lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2).sum()


def pooled(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def ring(a, b):
    around = [(i, (i + 1) % 4) for i in range(4)]
    step = lambda i, c: (c[0] + c[1] @ b, lax.ppermute(c[1], "x", around))
    return lax.fori_loop(0, 4, step, (jnp.zeros((a.shape[0], b.shape[1]), jnp.float32), a))[0]


one("layouts", layouts, floats(2, 3, 2, 2, 3), floats(8, 6), floats(5, 8))
one("convolution", jax.grad(convolution, (0, 1)), floats(2, 6, 6, 3), floats(3, 3, 3, 4))
one("pooling", lambda x: (pooled(x), jax.grad(lambda x: (pooled(x) ** 2).sum())(x)), floats(2, 4, 6, 3))
one("reductions", lambda x: (x.T.cumsum(0), x.argmax(1), jax.nn.softmax(x), x.prod(0), x.std(1)), floats(6, 9))
one("sorting", lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), lax.top_k(x.T, 2)), floats(6, 9))
one("indexing", lambda a, i: (a[i].T, a.at[:, i].add(1.0), lax.dynamic_slice(a, (i[0], 1), (2, 3))), floats(6, 6), np.int32([3, 0, 3]))
one("recurrent", jax.grad(recurrent, (0, 1)), floats(4, 4), floats(5, 3, 4))
one("random", lambda k: jax.random.uniform(k, (3, 5)), np.uint32([1, 2]))
one("bits", lambda x: (lax.bitcast_convert_type(x.T, jnp.uint8), lax.bitcast_convert_type(x, jnp.int16).T), floats(3, 4))
one("fourier", lambda x: (jnp.fft.rfft2(x), jnp.fft.fft(x.T, axis=1)), floats(4, 6))
axes = dict(inputs=(P("x"),), outputs=P("x"))
sharded("all_to_all", lambda a: lax.all_to_all(a, "x", 1, 0, tiled=True), (4,), [floats(16, 8)], **axes, manual=True)
sharded("reshape", lambda a: a.reshape(-1, 4).T + 1, (4,), [floats(8, 12)], (P("x"),), P(None, "x"))
sharded("ring", ring, (4,), [floats(8, 6), floats(6, 5)], (P("x"), P()), P("x"), manual=True)
sharded("attention", attention, (2,), [floats(2, 4, 2, 8)] * 3, (P("x"),) * 3, P("x"), form="pb")
weights = (P(None, "y"), P("y", None))
sharded("perceptron", jax.grad(perceptron, (0, 1)), (2, 2), [floats(6, 8), floats(8, 4), floats(4, 6)], (*weights, P("x")), weights, form="pb")

lines = ["\t".join(row) for row in [("name", "file", "devices", "tolerance"), *rows]]
(HERE / "dumps.tsv").write_text("\n".join(lines) + "\n")
