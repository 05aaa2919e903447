"""Times one job from launch to exit, and its steps, under spmd-run and under JAX, in one run on one machine.

    python benches/launch_vs_jax.py [--runs R] [--steps S]

The job is hlo/dp_tp_mlp_step.hlo: a training step on a 4x2 mesh over 4 processes x 2 CPU devices. JAX runs the same
step by jit with the same shardings, over its own multi-process CPU collectives (gloo), with the same inputs. Needs jax
and numpy, and a release build of spmd-run. Prints medians and their ratio.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROCESSES, DEVICES = 4, 2
DATA = ROOT / "hlo/data/dp_tp_mlp_step"


def jax_process(address, index, steps):
    """One of JAX's processes; process 0 prints the median seconds per step."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, PROCESSES, index)

    def loss(w1, b1, w2, b2, x, y):
        return jnp.mean((jnp.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2)

    def step(w1, b1, w2, b2, x, y):
        value, grads = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(w1, b1, w2, b2, x, y)
        return *(w - 0.1 * g for w, g in zip((w1, b1, w2, b2), grads)), value

    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    sharding = lambda *axes: NamedSharding(mesh, P(*axes))
    weights = (sharding(None, "model"), sharding("model"), sharding("model", None), sharding())
    places = (*weights, sharding("data"), sharding("data"))
    with np.load(f"{DATA}.in.npz") as file:
        arrays = [file[f"arg{i}"] for i in range(6)]
    args = [
        jax.make_array_from_callback(a.shape, place, lambda index, a=a: a[index]) for a, place in zip(arrays, places)
    ]
    compiled = jax.jit(step, in_shardings=places, out_shardings=(*weights, sharding())).lower(*args).compile()
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        seconds.append(time.perf_counter() - start)
    if index == 0:
        print(statistics.median(seconds))


def run_jax(steps):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [sys.executable, __file__, "--jax-process", address, "--steps", str(steps), "--index"]
    processes = [
        subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(PROCESSES)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("a JAX process failed:\n" + "\n".join(stderr for _, stderr in outputs))
    return float(outputs[0][0].split()[-1])


def run_ours(steps):
    command = [ROOT / "target/release/spmd-run", "-n", str(PROCESSES), "--devices-per-process", str(DEVICES)]
    command += [ROOT / "hlo/dp_tp_mlp_step.hlo", "--input", f"{DATA}.in.npz", "--repeat", str(steps), "--format", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["steps"]["median_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--jax-process", help=argparse.SUPPRESS)
    parser.add_argument("--index", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jax_process:
        return jax_process(options.jax_process, options.index, options.steps)

    launches, medians = {"JAX": [], "spmd-run": []}, {"JAX": [], "spmd-run": []}
    for _ in range(options.runs):
        for name, run in (("JAX", run_jax), ("spmd-run", run_ours)):
            start = time.perf_counter()
            medians[name].append(run(options.steps))
            launches[name].append(time.perf_counter() - start)
    for what, seconds in (("launch to exit", launches), (f"step (median of {options.steps})", medians)):
        jax, ours = statistics.median(seconds["JAX"]), statistics.median(seconds["spmd-run"])
        print(f"{what}: JAX {jax:.4f} s, spmd-run {ours:.4f} s, ratio {jax / ours:.1f}")


if __name__ == "__main__":
    main()
