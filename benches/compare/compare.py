#!/usr/bin/env python3
"""Compares spmd-run with JAX (gloo), Open MPI and what the machine allows, in one run.

    python3 benches/compare/compare.py [collectives] [plain] [mlp] [startup] [options]

Installs what it needs: a release build of spmd-run, the CPU plugin, JAX into a virtual environment under target/, and
Open MPI with apt-get where mpicc is missing. The sides take turns, every launch is a new one, and figures are medians over
the launches of each launch's median step in its slowest process. Prints Markdown tables; ratios above 1 say how many times
as long the other side takes.

The bounds of a collective: every operand is read and every result written once, by processes that copy at the same time
(`memory`), or the least that has to be sent is, by bare sockets of the loopback device (`sockets`; see bounds.c).
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOOL = ROOT / "target/release/spmd-run"
WORK = ROOT / "target/compare"
OPS = "all_reduce,all_gather,reduce_scatter,alltoall,ppermute"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def steps_for(size):
    return max(8, min(300, (64 << 20) // size))


def of_bound(op, processes, way):
    """How much of the copying, or sending, of its size a collective has to do in each process."""
    if way == "memory":
        return (1 + 1 / processes) / 2 if op == "reduce_scatter" else 1
    others = (processes - 1) / processes
    return {"all_reduce": 2 * others, "ppermute": 1}.get(op, others)


def run(command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def install(sides, python):
    """The Python that has JAX; everything else ends up on the PATH or under target/."""
    WORK.mkdir(parents=True, exist_ok=True)
    run(["cargo", "build", "--release", "--bin", "spmd-run"], cwd=ROOT)
    if subprocess.run([TOOL, "devices"], capture_output=True).returncode:
        run([TOOL, "plugin", "install", "cpu"])
    if "mpi" in sides:
        if not shutil.which("mpicc"):
            run(["apt-get", "update", "-qq"])
            run(["apt-get", "install", "-y", "-qq", "openmpi-bin", "libopenmpi-dev"])
        run(["mpicc", "-O3", "-march=native", HERE / "mpi.c", "-o", WORK / "mpi"])
    if "bounds" in sides:
        run(["cc", "-O3", "-march=native", HERE / "bounds.c", "-o", WORK / "bounds"])
    if "jax" in sides and not python:
        python = WORK / "venv/bin/python"
        if not python.exists():
            run([sys.executable, "-m", "venv", WORK / "venv"])
            run([python, "-m", "pip", "install", "-q", "jax"])
    return python


def ours(what, processes, devices, *options):
    command = [TOOL, *what, "-n", processes, "--devices-per-process", devices, "--format", "json", *options]
    return json.loads(run(command))


def jax(python, processes, devices, *what):
    """The lines of each process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [str(it) for it in (python, HERE / "jax_peer.py", address, processes)]
    started = [
        subprocess.Popen([*command, *map(str, (index, devices, *what))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for index in range(processes)
    ]
    outputs = [process.communicate(timeout=900) for process in started]
    if any(process.returncode for process in started):
        sys.exit("a JAX process failed:\n" + "\n".join(stderr[-2000:] for _, stderr in outputs))
    return [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in outputs]


class Figures:
    """Seconds by row and side, and which results were wrong."""

    def __init__(self):
        self.seconds, self.wrong = {}, {}

    def add(self, row, side, seconds, right=True):
        self.seconds.setdefault(row, {}).setdefault(side, []).append(seconds)
        if not right:
            self.wrong[row, side] = self.wrong.get((row, side), 0) + 1

    def median(self, row, side):
        found = self.seconds[row].get(side)
        return statistics.median(found) if found else None

    def cell(self, row, side):
        seconds = self.median(row, side)
        if seconds is None:
            return ""
        wrong = self.wrong.get((row, side))
        return f"{seconds * 1e6:.1f}" + (f" ({wrong} wrong)" if wrong else "")

    def ratio(self, row, side, to):
        one, other = self.median(row, side), self.median(row, to)
        return f"{one / other:.2f}" if one and other else ""


def table(head, rows):
    for cells in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(map(str, cells)) + " |")
    print(flush=True)


def collectives(options, python):
    ops, sizes = options.ops.split(","), [size_of(size) for size in options.sizes.split(",")]
    steps = [steps_for(size) for size in sizes]
    for processes, devices in ((n, k) for k in options.devices for n in options.processes):
        figures = Figures()

        def measure_ours(way, transport):
            for size in sizes:
                sweep = ["-b", size, "-e", size, "--iters", steps_for(size), "--measure", way, "--transport", transport]
                for row in ours(["bench", "collectives", options.ops], processes, devices, *sweep)["rows"]:
                    figures.add((row["op"], size), f"{way} {transport}", row["median_seconds"], row["wrong"] == 0)

        def measure_jax():
            lists = [",".join(map(str, numbers)) for numbers in (sizes, steps)]
            for lines in zip(*jax(python, processes, devices, "collectives", options.ops, *lists)):
                slowest = max(line["seconds"] for line in lines)
                right = all(line["right"] for line in lines)
                figures.add((lines[0]["op"], lines[0]["size"]), "jax", slowest, right)

        def measure_mpi(side, flags):
            mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", *flags, "-n", processes, WORK / "mpi"]
            for op, size in ((op, size) for op in ops for size in sizes):
                micros, right = run([*mpirun, op, size, steps_for(size)]).split()
                figures.add((op, size), side, float(micros) / 1e6, right == "1")

        def measure_bounds():
            for way, what in (("memory", "copy"), ("sockets", "sockets")):
                for size in sizes:
                    micros = float(run([WORK / "bounds", what, size, steps_for(size), processes]))
                    for op in ops:
                        figures.add((op, size), way, of_bound(op, processes, way) * micros / 1e6)

        measures = [lambda: measure_ours("program", "shm"), lambda: measure_ours("engine", "shm")]
        measures += [lambda: measure_ours("program", "tcp"), lambda: measure_ours("engine", "tcp")]
        if "jax" in options.sides:
            measures.append(measure_jax)
        if "mpi" in options.sides and devices == 1:
            measures.append(lambda: measure_mpi("mpi shm", []))
            measures.append(lambda: measure_mpi("mpi tcp", ["--mca", "btl", "tcp,self"]))
        if "bounds" in options.sides and devices == 1:
            measures.append(measure_bounds)
        for _ in range(options.runs):
            for measure in measures:
                measure()
        print(f"{processes} processes × {devices} device(s), f32, µs; median of {options.runs} launches\n")
        sides = ["program shm", "program tcp", "engine shm", "engine tcp", "jax", "mpi shm", "mpi tcp", "memory", "sockets"]
        pairs = [("jax", "program shm"), ("jax", "program tcp"), ("mpi shm", "engine shm"), ("mpi tcp", "engine tcp")]
        pairs += [("memory", "engine shm"), ("sockets", "engine tcp")]
        head = ["op", "size", *sides, *(f"{one} ÷ {other}" for one, other in pairs)]
        rows = [(op, size) for op in ops for size in sizes]
        cells = lambda row: [figures.cell(row, side) for side in sides] + [figures.ratio(row, *pair) for pair in pairs]
        names = {size: text for size, text in zip(sizes, options.sizes.split(","))}
        table(head, [[op, names[size], *cells((op, size))] for op, size in rows])


def plain(options, python):
    """A program without collectives, which has a result of its operand's size in fresh memory."""
    # The C library takes some steps until it has arranged its memory so that all of it is used again.
    size, warmup, steps, rows = 64 << 20, 20, 40, []
    for processes in sorted({1, *options.processes}):
        program, shape, figures = WORK / f"plain{processes}.hlo", f"f32[{size // 4}]", Figures()
        program.write_text(
            f"HloModule plain, replica_count={processes}\nENTRY main {{\n  x = {shape} parameter(0)\n  one = f32[] constant(1)\n"
            f"  ones = {shape} broadcast(one), dimensions={{}}\n  ROOT sum = {shape} add(x, ones)\n}}\n"
        )
        for _ in range(options.runs):
            steps_of = ours([program], processes, 1, "--warmup", warmup, "--repeat", steps)["steps"]
            figures.add("", "spmd-run", steps_of["median_seconds"])
            figures.add("", "jax", max(lines[0]["seconds"] for lines in jax(python, processes, 1, "plain", size, steps)))
        rows.append([processes, figures.cell("", "spmd-run"), figures.cell("", "jax"), figures.ratio("", "jax", "spmd-run")])
    print(f"x + 1 of 64 MiB on each device, µs; median of {options.runs} launches\n")
    table(["processes", "spmd-run", "jax", "jax ÷ spmd-run"], rows)


def mlp(options, python):
    """A training step 784-1024-1024-10 with batch 256, the batch divided over the devices."""
    counts = sorted({1, *options.processes})
    for count in counts:
        jax(python, 1, count, "mlp", WORK, 1)
    rows, figures, losses = [], Figures(), {}
    for processes in counts:
        program = lambda name: WORK / f"{name}{processes}.mlir"
        common = ["--num-partitions", processes, "--input", WORK / "mlp.npz"]
        for _ in range(options.runs):
            step = ours([program("step")], processes, 1, *common, "--warmup", 5, "--repeat", 30)
            figures.add(processes, "spmd-run", step["steps"]["median_seconds"])
            peers = jax(python, processes, 1, "mlp", WORK, 30)
            figures.add(processes, "jax", max(lines[0]["seconds"] for lines in peers))
        five = ours([program("losses")], processes, 1, *common, "--print")
        values = five["values"]["out0"]
        same = all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(values, peers[0][0]["losses"], strict=True))
        rows.append([
            processes,
            *(f"{1 / figures.median(processes, side):.1f}" for side in ("spmd-run", "jax")),
            figures.ratio(processes, "jax", "spmd-run"),
            f"{values[0]:.6f} → {values[-1]:.6f}" + ("" if same else f", DIFFERENT from {peers[0][0]['losses']}"),
        ])
    print(f"data-parallel MLP step, steps per second; median of {options.runs} launches\n")
    table(["processes", "spmd-run", "jax", "jax ÷ spmd-run", "losses of steps 1 → 5 (both)"], rows)


def startup(options, python):
    rows = []
    for processes in options.processes:
        peers, tools = [], []
        for _ in range(options.runs):
            start = time.time()
            peers.append(max(lines[0]["at"] for lines in jax(python, processes, 1, "startup")) - start)
            tools.append(ours(["bench", "startup"], processes, 1, "--repeat", 1)["phases"]["total"]["median_seconds"])
        one, other = statistics.median(tools), statistics.median(peers)
        rows.append([processes, f"{one:.3f}", f"{other:.3f}", f"{other / one:.1f}"])
    print(f"launch until every process knows device_count, s; median of {options.runs} launches\n")
    table(["processes", "spmd-run", "jax", "jax ÷ spmd-run"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser.add_argument("what", nargs="*", help="collectives, plain, mlp, startup; default: all")
    parser.add_argument("--sides", type=lambda text: text.split(","), default=["jax", "mpi", "bounds"], help="what to compare with")
    parser.add_argument("--processes", type=numbers, default=[2, 4])
    parser.add_argument("--devices", type=numbers, default=[1], help="devices per process")
    parser.add_argument("--sizes", default="1K,64K,1M,16M,64M")
    parser.add_argument("--ops", default=OPS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--python", help="one that has JAX already")
    options = parser.parse_args()
    python = install(options.sides, options.python)
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    print(f"{datetime.date.today()}, {os.cpu_count()} cores, {cpu}, Linux {platform.release()}\n", flush=True)
    for name, part in (("collectives", collectives), ("plain", plain), ("mlp", mlp), ("startup", startup)):
        if not options.what or name in options.what:
            part(options, python)


if __name__ == "__main__":
    main()
