"""Exports a training step from JAX, as train_exported_step.rs takes it: writes train_step.mlirbc, StableHLO in the portable
form of jax.export, and train_step.npz with its first arguments and the losses that JAX computes.

A perceptron that learns sin(3x), trained by momentum, on a mesh of 2x2 devices: the batch is cut over one axis, the hidden layer
over the other. Run: python export_step.py
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax, random
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

HIDDEN, BATCH, STEPS = 32, 64, 40

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
place = lambda *axes: NamedSharding(mesh, P(*axes))
places = {"down": place("model", None), "offset": place(), "shift": place("model"), "up": place(None, "model")}


def loss(weights, x, y):
    hidden = jnp.tanh(x @ weights["up"] + weights["shift"])
    return jnp.mean((hidden @ weights["down"] + weights["offset"] - y) ** 2)


def step(weights, momenta, x, y):
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    momenta = jax.tree.map(lambda momentum, gradient: 0.9 * momentum + gradient, momenta, gradients)
    return jax.tree.map(lambda weight, momentum: weight - 0.02 * momentum, weights, momenta), momenta, value


keys = random.split(random.key(0), 2)
weights = {
    "down": random.normal(keys[0], (HIDDEN, 1)) * 0.25, "offset": jnp.zeros(1), "shift": jnp.zeros(HIDDEN),
    "up": random.normal(keys[1], (1, HIDDEN)) * 1.5,
}
momenta = jax.tree.map(jnp.zeros_like, weights)
x = jnp.linspace(-1, 1, BATCH)[:, None]
y = jnp.sin(3 * x)

of_arguments = (places, places, place("data"), place("data"))
step = jax.jit(step, in_shardings=of_arguments, out_shardings=(places, places, place()), donate_argnums=(0, 1))
exported = export.export(step, platforms=["cpu"])(weights, momenta, x, y)
with open("train_step.mlirbc", "wb") as file:
    file.write(exported.mlir_module_serialized)

arguments = {f"arg{index}": np.asarray(value) for index, value in enumerate(jax.tree.leaves((weights, momenta, x, y)))}
losses = []
state = jax.device_put((weights, momenta, x, y), of_arguments)
for _ in range(STEPS):
    weights, momenta, value = step(*state)
    state = (weights, momenta, *state[2:])
    losses.append(float(value))
np.savez("train_step.npz", **arguments, losses=np.array(losses, np.float32))
print(f"{len(exported.mlir_module_serialized)} bytes, loss {losses[0]:.4f} to {losses[-1]:.4f}")
