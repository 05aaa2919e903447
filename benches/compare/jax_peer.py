"""One process of JAX with gloo: jax_peer.py ADDRESS N INDEX DEVICES WHAT [ARGUMENTS]. Prints JSON lines.

    collectives OPS SIZES ITERS    median seconds of each, and whether the result was right
    plain SIZE STEPS               median seconds of a program without collectives
    mlp FOLDER STEPS               steps of a data-parallel perceptron; process 0 of 1 also writes it as StableHLO
    startup                        the device count, and when it was known
"""

import json
import os
import statistics
import sys
import time

ADDRESS, N, INDEX, DEVICES = sys.argv[1], *map(int, sys.argv[2:5])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = str(DEVICES)

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

if N > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(ADDRESS, N, INDEX)


def timed(call, iters):
    """Median seconds of a call until its results are there and released."""
    seconds = []
    for step in range(-max(2, iters // 10), iters):
        start = time.perf_counter()
        jax.block_until_ready(call())
        if step >= 0:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def collectives(ops, sizes, iters):
    ranks = jax.device_count()
    mesh = jax.make_mesh((ranks,), ("x",))
    sharding = NamedSharding(mesh, P("x"))
    bodies = {
        "all_reduce": lambda v: lax.psum(v, "x"),
        "all_gather": lambda v: lax.all_gather(v, "x", tiled=True),
        "reduce_scatter": lambda v: lax.psum_scatter(v, "x", tiled=True),
        "alltoall": lambda v: lax.all_to_all(v, "x", 0, 0, tiled=True),
        "ppermute": lambda v: lax.ppermute(v, "x", [(i, ranks - 1 - i) for i in range(ranks)]),
    }

    def wanted(op, rank, count):
        operands = np.arange(1, ranks + 1, dtype=np.float32)[:, None] + np.arange(count, dtype=np.float32) % 251
        part = slice(rank * count // ranks, (rank + 1) * count // ranks)
        return {
            "all_reduce": lambda: operands.sum(0),
            "all_gather": lambda: operands.ravel(),
            "reduce_scatter": lambda: operands.sum(0)[part],
            "alltoall": lambda: operands[:, part].ravel(),
            "ppermute": lambda: operands[ranks - 1 - rank],
        }[op]()

    for op in ops:
        call = jax.jit(jax.shard_map(bodies[op], mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
        for size, steps in zip(sizes, iters):
            count = size // 4 // (ranks if op == "all_gather" else 1)
            piece = lambda index: (index[0].start or 0) // count + 1 + np.arange(count, dtype=np.float32) % 251
            array = jax.make_array_from_callback((ranks * count,), sharding, piece)
            seconds = timed(lambda: call(array), steps)
            shards = call(array).addressable_shards
            rank_of = {device: rank for rank, device in enumerate(mesh.devices.flat)}
            right = all(np.array_equal(shard.data, wanted(op, rank_of[shard.device], count)) for shard in shards)
            print(json.dumps({"op": op, "size": size, "seconds": seconds, "right": right}), flush=True)


def plain(size, steps):
    sharding = NamedSharding(jax.make_mesh((jax.device_count(),), ("x",)), P("x"))
    ones = lambda index: np.ones(size // 4, np.float32)
    array = jax.make_array_from_callback((jax.device_count() * size // 4,), sharding, ones)
    call = jax.jit(lambda x: x + 1, out_shardings=sharding)
    print(json.dumps({"seconds": timed(lambda: call(array), steps)}), flush=True)


def mlp(folder, steps):
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("x"))
    random, dims, batch = np.random.default_rng(0), [784, 1024, 1024, 10], 256
    weights = [(random.standard_normal(pair) / pair[0] ** 0.5).astype(np.float32) for pair in zip(dims, dims[1:])]
    arrays = [array for weight in weights for array in (weight, np.zeros(weight.shape[1], np.float32))]
    arrays.append(random.standard_normal((batch, dims[0])).astype(np.float32))
    arrays.append(np.eye(10, dtype=np.float32)[random.integers(0, 10, batch)])
    places = [whole] * 6 + [rows] * 2

    def loss(parameters, x, y):
        for layer in range(3):
            x = x @ parameters[2 * layer] + parameters[2 * layer + 1]
            x = jax.nn.relu(x) if layer < 2 else x
        return -jnp.sum(jax.nn.log_softmax(x) * y) / batch

    def step(*arrays):
        parameters, (x, y) = arrays[:6], arrays[6:]
        value, gradients = jax.value_and_grad(loss)(parameters, x, y)
        return *(p - 0.01 * g for p, g in zip(parameters, gradients)), value

    def losses(*arrays):
        """Those of five steps."""

        def body(parameters, _):
            *parameters, value = step(*parameters, *arrays[6:])
            return tuple(parameters), value

        return lax.scan(body, arrays[:6], length=5)[1]

    results = (whole,) * 7
    lowered = {"step": (step, results), "losses": (losses, whole)}
    calls = {name: jax.jit(f, in_shardings=places, out_shardings=out) for name, (f, out) in lowered.items()}
    given = [jax.make_array_from_callback(a.shape, s, lambda index, a=a: a[index]) for a, s in zip(arrays, places)]
    if N == 1:
        for name, call in calls.items():
            with open(f"{folder}/{name}{DEVICES}.mlir", "w") as file:
                file.write(call.lower(*given).as_text())
        np.savez(f"{folder}/mlp.npz", **{f"arg{i}": array for i, array in enumerate(arrays)})
    trained = jax.jit(step, in_shardings=places, out_shardings=results, donate_argnums=range(6))
    state = [jax.device_put(array, array.sharding) + 0 for array in given[:6]]

    def train():
        *state[:], value = trained(*state, *given[6:])
        return state, value

    seconds = timed(train, steps)
    print(json.dumps({"seconds": seconds, "losses": np.asarray(calls["losses"](*given)).tolist()}), flush=True)


what, *arguments = sys.argv[5:]
if what == "collectives":
    sizes, iters = (list(map(int, text.split(","))) for text in arguments[1:])
    collectives(arguments[0].split(","), sizes, iters)
elif what == "plain":
    plain(*map(int, arguments))
elif what == "mlp":
    mlp(arguments[0], int(arguments[1]))
else:
    print(json.dumps({"device_count": jax.device_count(), "at": time.time()}), flush=True)
