"""Two TPU slices of four hosts with four chips each, as a Ray cluster on this machine.

Prints its address, then answers a line with one: `use` with what is free, `kill SLICE WORKER` kills a node, and `end` kills all
of them and ends. Ends at the end of its input, too.
"""

import json
import os
import sys

os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_health_check_initial_delay_ms="0",
    RAY_health_check_period_ms="500",
    RAY_health_check_failure_threshold="10",
)

import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # What Ray prints is no answer.

SMALL = {"object_store_memory": 80 << 20, "include_dashboard": False}


def host(slice, worker):
    """What Ray itself finds out on a host of a v4-32; one slice is known by its labels, the other by its resources."""
    resources = {"TPU": 4, slice: 1, **({"TPU-v4-32-head": 1} if worker == 0 else {})}
    labels = {"ray.io/tpu-slice-name": slice, "ray.io/tpu-worker-id": str(worker)} if slice == "slice-a" else {}
    return {"num_cpus": 0, "resources": resources, "labels": labels, **SMALL}


# The node where drivers run is none of the slices'.
# What it brings to the others has to fit into its object store.
HEAD = {**SMALL, "num_cpus": 1, "object_store_memory": 400 << 20}
cluster = Cluster(initialize_head=True, head_node_args=HEAD)
places = [(slice, worker) for slice in ("slice-a", "slice-b") for worker in range(4)]
nodes = {place: cluster.add_node(wait=False, **host(*place)) for place in places}
cluster.wait_for_nodes()
ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
print(cluster.address, flush=True, file=answers)
for line in sys.stdin:
    order, *words = line.split()
    if order == "kill":
        slice, worker = words[0], int(words[1])
        nodes[slice, worker].all_processes["raylet"][0].process.kill()
        print("killed", flush=True, file=answers)
    elif order == "end":
        for node in cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        print("ended", flush=True, file=answers)
        os._exit(0)  # What is to be cleaned up is gone.
    else:
        groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        free, all = ray.available_resources(), ray.cluster_resources()
        answer = {"free": free.get("TPU", 0), "all": all.get("TPU", 0), "heads": free.get("TPU-v4-32-head", 0)}
        print(json.dumps({**answer, "groups": len(groups)}), flush=True, file=answers)
ray.shutdown()
cluster.shutdown()
