"""Trains the GPT of examples/train_gpt.rs in Rust and in JAX, from the same weights on the same data, and compares the loss
of every step and the time.

    python benches/gpt_vs_jax.py [--steps S] [--runs R] [--processes 1 4]

JAX computes the same model by jit with the same shardings, in as many processes (over its own CPU collectives, gloo, where
there are several). Needs jax and numpy, and `cargo build --release --bin spmd-run --examples`. Prints the largest
difference between the losses of a step, medians over the runs, and their ratio; above 1, JAX takes longer.
"""

import argparse
import math
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = ROOT / "examples/data/as_you_like_it.txt"
BATCH, CONTEXT, WIDTH, HEADS, LAYERS, SEED = 16, 64, 128, 4, 4, 0


def jax_process(address, index, processes, steps):
    """One of JAX's processes; process 0 prints the losses and the seconds in the manner of the example."""
    started = time.perf_counter()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax, nn, random
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, processes, index)
    model = 2 if processes % 2 == 0 else 1
    mesh = Mesh(np.array(jax.devices()).reshape(-1, model), ("data", "model"))
    text = np.frombuffer(TEXT.read_bytes(), np.uint8)
    alphabet, tokens = np.unique(text, return_inverse=True)
    tokens = tokens.astype(np.int32)

    per_head, last = WIDTH // HEADS, 0.02 / math.sqrt(2 * LAYERS)
    block = [
        ((WIDTH,), P(), None), *[((WIDTH, HEADS, per_head), P(None, "model", None), 0.02)] * 3,
        ((HEADS, per_head, WIDTH), P("model", None, None), last), ((WIDTH,), P(), None),
        ((WIDTH, 4 * WIDTH), P(None, "model"), 0.02), ((4 * WIDTH, WIDTH), P("model", None), last),
    ]
    weights = [((len(alphabet), WIDTH), P(), 0.02), ((CONTEXT, WIDTH), P(), 0.02), *block * LAYERS, ((WIDTH,), P(), None)]
    places = [NamedSharding(mesh, spec) for _, spec, _ in weights]
    everywhere = NamedSharding(mesh, P())

    def init():
        keys = random.split(random.split(random.PRNGKey(SEED))[0], len(weights))
        values = [
            jnp.ones(dims) if deviation is None else random.normal(key, dims) * deviation
            for (dims, _, deviation), key in zip(weights, keys)
        ]
        zeros = [jnp.zeros(dims) for dims, _, _ in weights]
        return jnp.int32(0), values, zeros, zeros

    def normalize(x):
        centered = x - x.mean(-1, keepdims=True)
        return centered * lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)

    def loss(values, windows):
        embedding, positions, *layers, norm = values
        inputs, targets = windows[:, :-1], windows[:, 1:]
        past = jnp.tril(jnp.ones((CONTEXT, CONTEXT), bool))
        x = embedding[inputs] + positions
        for at in range(0, len(layers), len(block)):
            norm1, query, key, value, output, norm2, up, down = layers[at:at + len(block)]
            h = normalize(x) * norm1
            q, k, v = (jnp.einsum("btd,dhk->bthk", h, w) for w in (query, key, value))
            scores = jnp.einsum("bqhk,bthk->bhqt", q, k) / math.sqrt(per_head)
            attention = nn.softmax(jnp.where(past, scores, -1e9))
            x = x + jnp.einsum("bqhk,hkd->bqd", jnp.einsum("bhqt,bthk->bqhk", attention, v), output)
            x = x + nn.gelu((normalize(x) * norm2) @ up) @ down
        probabilities = nn.log_softmax((normalize(x) * norm) @ embedding.T)
        return -jnp.take_along_axis(probabilities, targets[..., None], -1).mean()

    def step(state, text):
        done, values, means, variances = state
        key = random.fold_in(random.split(random.PRNGKey(SEED))[1], done)
        starts = (random.uniform(key, (BATCH, 1)) * (len(text) - CONTEXT - 1)).astype(jnp.int32)
        windows = lax.with_sharding_constraint(text[starts + jnp.arange(CONTEXT + 1)], NamedSharding(mesh, P("data")))
        value, gradients = jax.value_and_grad(loss)(values, windows)
        norm = jnp.sqrt(sum((g * g).sum() for g in gradients))
        gradients = [g / jnp.maximum(norm, 1) for g in gradients]
        done = done + 1
        rate = 3e-3 * jnp.minimum(done / 20, 1) * (0.55 + 0.45 * jnp.cos(done * (math.pi / steps)))
        means = [0.9 * m + 0.1 * g for m, g in zip(means, gradients)]
        variances = [0.99 * v + 0.01 * g * g for v, g in zip(variances, gradients)]
        bias1, bias2 = 1 - 0.9 ** done.astype(jnp.float32), 1 - 0.99 ** done.astype(jnp.float32)
        values = [
            w - rate * (m / bias1 / (jnp.sqrt(v / bias2) + 1e-8) + (0.1 if w.ndim > 1 else 0) * w)
            for w, m, v in zip(values, means, variances)
        ]
        return (done, values, means, variances), value

    of_state = (everywhere, places, places, places)
    text = jax.make_array_from_callback(tokens.shape, everywhere, lambda at: tokens[at])
    state = jax.jit(init, out_shardings=of_state)()
    step = jax.jit(step, out_shardings=(of_state, everywhere), donate_argnums=0).lower(state, text).compile()
    jax.block_until_ready(state)
    compiled = time.perf_counter()
    for number in range(1, steps + 1):
        state, value = step(state, text)
        value = float(value)
        if index == 0:
            print(f"step {number}: loss {value:.6f}")
    done = time.perf_counter()
    if index == 0:
        print(f"{steps} steps in {done - compiled:.3f} s, after {compiled - started:.3f} s of preparations", file=sys.stderr)


def run_jax(processes, steps):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [sys.executable, __file__, "--steps", str(steps), "--processes", str(processes), "--jax-process", address]
    started = [
        subprocess.Popen([*command, str(index)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for index in range(processes)
    ]
    outputs = [process.communicate(timeout=1800) for process in started]
    if any(process.returncode for process in started):
        sys.exit("a JAX process failed:\n" + "\n".join(stderr[-3000:] for _, stderr in outputs))
    return outputs[0]


def run_ours(processes, steps):
    command = [ROOT / "target/release/spmd-run", "-n", processes, "--", ROOT / "target/release/examples/train_gpt"]
    command += ["--steps", steps, "--every", 1, "--seed", SEED]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout, done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--jax-process", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jax_process:
        address, index = options.jax_process
        return jax_process(address, int(index), options.processes[0], options.steps)

    for processes in options.processes:
        seconds = {"JAX": [], "spmd-run": []}
        losses = {}
        for _ in range(options.runs):
            for name, run in (("JAX", run_jax), ("spmd-run", run_ours)):
                started = time.perf_counter()
                stdout, stderr = run(processes, options.steps)
                whole = time.perf_counter() - started
                steps = float(re.search(r"steps in ([\d.]+) s", stderr)[1])
                seconds[name].append((whole, steps))
                losses[name] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", stdout)]
        pairs = list(zip(losses["JAX"], losses["spmd-run"], strict=True))
        apart = [abs(jax - ours) for jax, ours in pairs]
        print(f"{processes} processes, {options.steps} steps: loss {pairs[0][1]:.4f} to {pairs[-1][1]:.4f}, "
              f"from JAX's at most {max(apart):.1e} at step {apart.index(max(apart)) + 1}")
        for what, column in (("launch to exit", 0), ("steps", 1)):
            jax, ours = (statistics.median(run[column] for run in seconds[name]) for name in ("JAX", "spmd-run"))
            print(f"  {what}: JAX {jax:.2f} s, spmd-run {ours:.2f} s, ratio {jax / ours:.2f}", flush=True)


if __name__ == "__main__":
    main()
