"""One process of a JAX job on CPUs, for measure.py: joins, then sums over all processes again and again.

    jax_process.py HOST:PORT PROCESS_ID PROCESS_COUNT INITIALIZATION_TIMEOUT PROGRAM
"""

import sys

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def main():
    address, process_id, process_count, timeout, program = sys.argv[1:]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address, int(process_count), int(process_id), initialization_timeout=int(timeout)
    )
    mesh = Mesh(jax.devices(), "x")
    rows = NamedSharding(mesh, PartitionSpec("x"))
    ones = jax.jit(lambda: jnp.ones((8 * jax.device_count(), 64)), out_shardings=rows)()
    if program == "other":
        step = jax.jit(lambda x: jnp.cumsum(x, axis=0) + x.max())
    else:
        step = jax.jit(lambda x: x + x.sum(axis=0))
    step(ones).block_until_ready()
    print("ready", flush=True)
    while True:
        step(ones).block_until_ready()


main()
