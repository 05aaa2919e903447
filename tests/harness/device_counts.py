"""What JAX's examples on Ray compute, on the cluster of ray_cluster.py: every chip adds up ones of all chips.

Arguments: the program, and the address of the cluster.
"""

import json
import sys

import spmd_ray

program, address = sys.argv[1:]


def count(hosts, **options):
    """The sum on the first chip of each host."""
    options = dict(ray_address=address, devices_per_process=4, num_replicas=4 * hosts, print=True, **options)
    return [int(value) for value in spmd_ray.run(program, hosts, **options)["values"]["out0"][::4]]


print(count(hosts=1))
print(count(hosts=4))
print(count(hosts=8, slices=2))
view = spmd_ray.devices(hosts=8, slices=2, ray_address=address, devices_per_process=4)
print([device["slice_index"] for process in view["processes"] for device in process["devices"][:1]])
try:
    spmd_ray.execute(["false"], ray_address=address)
except spmd_ray.JobError as error:
    print(error)
