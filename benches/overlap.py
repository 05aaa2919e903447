#!/usr/bin/env python3
"""How much of a large all-reduce a computation hides that does not need it.

    python3 benches/overlap.py [--rate 1gbit] [--trips 80] [--runs 3]

Two processes in network namespaces of their own, with a link of the given rate between them (needs root), run a chain of
matrix products, an all-reduce of 16 MiB, and a program with both, in turns. Prints the medians and the share of the shorter
one that was hidden. Needs a release build and the CPU plugin.
"""

import argparse
import json
import os
import pathlib
import secrets
import statistics
import subprocess
import tempfile

TOOL = pathlib.Path(__file__).resolve().parent.parent / "target/release/spmd-run"
SPACES = ["spmd-overlap-0", "spmd-overlap-1"]

PRODUCTS = """
body {
  state = (s32[], f32[512,512], f32[512,512]) parameter(0)
  trip = s32[] get-tuple-element(state), index=0
  x = f32[512,512] get-tuple-element(state), index=1
  weights = f32[512,512] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(trip, one)
  product = f32[512,512] dot(x, weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT result = (s32[], f32[512,512], f32[512,512]) tuple(next, product, weights)
}
condition {
  state = (s32[], f32[512,512], f32[512,512]) parameter(0)
  trip = s32[] get-tuple-element(state), index=0
  trips = s32[] constant(TRIPS)
  ROOT goes_on = pred[] compare(trip, trips), direction=LT
}
"""
COMPUTE = """
  zero = s32[] constant(0)
  start = (s32[], f32[512,512], f32[512,512]) tuple(zero, matrix, matrix)
  end = (s32[], f32[512,512], f32[512,512]) while(start), condition=condition, body=body
  computed = f32[512,512] get-tuple-element(end), index=1
"""
SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT both = f32[] add(a, b)
}
"""
REDUCE = """
  reduced = f32[4194304] all-reduce(gradient), replica_groups={{0,1}}, to_apply=sum
"""


def program(name, trips):
    computes, reduces = name != "reduce", name != "compute"
    results = [("f32[512,512]", "computed")] * computes + [("f32[4194304]", "reduced")] * reduces
    shapes, names = (", ".join(it) for it in zip(*results))
    return (
        f"HloModule {name}, replica_count=2\n{PRODUCTS.replace('TRIPS', str(trips)) * computes}{SUM * reduces}"
        "ENTRY main {\n  matrix = f32[512,512] parameter(0)\n  gradient = f32[4194304] parameter(1)"
        f"{COMPUTE * computes}{REDUCE * reduces}  ROOT results = ({shapes}) tuple({names})\n}}\n"
    )


def ip(*command):
    subprocess.run(["ip", *command], check=True)


def connect(rate):
    for index, space in enumerate(SPACES):
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
    ip("link", "add", "wire", "netns", SPACES[0], "type", "veth", "peer", "name", "wire", "netns", SPACES[1])
    for index, space in enumerate(SPACES):
        ip("-n", space, "addr", "add", f"10.98.0.{1 + index}/24", "dev", "wire")
        ip("-n", space, "link", "set", "wire", "up")
        limit = ["tc", "qdisc", "add", "dev", "wire", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        subprocess.run(["ip", "netns", "exec", space, *limit], check=True)


def seconds(path):
    """The median step. In process namespaces of their own, as they would share memory."""
    environment = {**os.environ, "SPMD_JOB_TOKEN": secrets.token_hex(32)}
    job = ["-n", "2", "--coordinator", "10.98.0.1:45998", "--warmup", "2", "--repeat", "10", "--format", "json"]
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", space, "unshare", "-pf", "--mount-proc", TOOL, path, *job, "--process-id", str(index)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for index, space in enumerate(SPACES)
    ]
    report, _ = [process.communicate()[0] for process in started]
    return json.loads(report)["steps"]["median_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc has it")
    parser.add_argument("--trips", type=int, default=80, help="matrix products")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    times = {"compute": [], "reduce": [], "both": []}
    try:
        connect(options.rate)
        with tempfile.TemporaryDirectory() as folder:
            for name in list(times) * options.runs:
                path = pathlib.Path(folder, f"{name}.hlo")
                path.write_text(program(name, options.trips))
                times[name].append(seconds(path))
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], check=False)
    compute, reduce, both = (statistics.median(it) for it in times.values())
    hidden = (compute + reduce - both) / min(compute, reduce)
    print(f"compute {compute * 1e3:.0f} ms, all-reduce {reduce * 1e3:.0f} ms, both {both * 1e3:.0f} ms: {hidden:.0%} hidden")


if __name__ == "__main__":
    main()
