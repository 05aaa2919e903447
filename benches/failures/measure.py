#!/usr/bin/env python3
"""What spmd-run and JAX print when something goes wrong with one of the processes of a job, and when they end.

    benches/failures/measure.py SPMD_RUN [--python PYTHON] [--only CASE] [--tool jax|spmd-run] [--outputs FOLDER]

Needs a Python with JAX and a CPU plugin in PJRT_PLUGIN_LIBRARY_PATH. Four processes on this machine, each started by
hand. For every case a line of JSON: for each process that nothing was done to, the seconds from the fault to its end, its
exit code and its last words; --outputs keeps everything that they print. Both tools wait for each other for WAIT seconds at the start and may be silent for STUCK
seconds, where their options allow that to be set; whatever has not ended after LIMIT seconds is ended here.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROCESSES = 4
WAIT = 30
STUCK = 100
LIMIT = 180
VICTIM = 2


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Jax:
    name = "jax"

    def __init__(self, options):
        self.python = options.python

    def command(self, address, index, program):
        script = str(Path(__file__).with_name("jax_process.py"))
        return [self.python, script, address, str(index), str(PROCESSES), str(WAIT), program]

    def is_ready(self, job):
        return all(b"ready" in process.output() for process in job)


class SpmdRun:
    name = "spmd-run"

    def __init__(self, options):
        self.binary = options.spmd_run

    def command(self, address, index, program):
        files = {"main": "hlo/scan_layers.hlo", "other": "hlo/moe.hlo"}
        return [self.binary, "-n", str(PROCESSES), "--coordinator", address, "--process-id", str(index),
                "--rendezvous-timeout", str(WAIT), "--stall-timeout", str(STUCK), "--repeat", "100000000", files[program]]

    def is_ready(self, job):
        status = subprocess.run([self.binary, "status", "--coordinator", job[0].address, "--format", "json"],
                                capture_output=True)
        return status.returncode == 0 and json.loads(status.stdout)[0]["step"] > 0


class Process:
    def __init__(self, tool, address, index, program="main"):
        self.address = address
        self.index = index
        self.file = tempfile.TemporaryFile()
        self.child = subprocess.Popen(tool.command(address, index, program), cwd=ROOT, stdin=subprocess.DEVNULL,
                                      stdout=self.file, stderr=self.file)
        self.ended = None

    def output(self):
        self.file.seek(0)
        return self.file.read()

    def look(self):
        if self.ended is None and self.child.poll() is not None:
            self.ended = time.monotonic()

    def last_words(self):
        lines = [line.strip() for line in self.output().decode(errors="replace").splitlines() if line.strip()]
        # Not the stacks of crashes.
        lines = [line for line in lines if not line.startswith(("@ ", "***", "File ", "#"))]
        fatal = [line for line in lines if re.match(r"F\d{4} ", line)]
        telling = [line for line in lines if "rror: " in line or re.match(r"E\d{4} ", line)]
        return (fatal[:1] or telling[-1:] or lines[-1:] or [""])[0][:800]


def start(tool, address, indices=range(PROCESSES)):
    return [Process(tool, address, index) for index in indices]


def until(what, job):
    limit = time.monotonic() + 300
    while not what():
        for process in job:
            if process.child.poll() is not None:
                sys.exit(f"process {process.index} has ended:\n{process.output().decode(errors='replace')}")
        if time.monotonic() > limit:
            sys.exit("the job does not start")
        time.sleep(0.2)


def running(tool):
    job = start(tool, f"127.0.0.1:{free_port()}")
    until(lambda: tool.is_ready(job), job)
    return job


def killed_in_a_step(tool):
    job = running(tool)
    job[VICTIM].child.kill()
    return job, {VICTIM}


def killed_at_the_rendezvous(tool):
    job = start(tool, f"127.0.0.1:{free_port()}", [0, 1, VICTIM])
    time.sleep(10)
    job[VICTIM].child.kill()
    return job, {VICTIM}


def missing(tool):
    return start(tool, f"127.0.0.1:{free_port()}", [0, 1, VICTIM]), set()


def stuck(tool):
    job = running(tool)
    job[VICTIM].child.send_signal(signal.SIGSTOP)
    return job, {VICTIM}


def coordinator_killed(tool):
    job = running(tool)
    job[0].child.kill()
    return job, {0}


def different_programs(tool):
    address = f"127.0.0.1:{free_port()}"
    job = start(tool, address, [0, 1, 3])
    job.insert(VICTIM, Process(tool, address, VICTIM, "other"))
    return job, set()


def wrong_address(tool):
    job = start(tool, f"127.0.0.1:{free_port()}", [0, 1, 3])
    job.insert(VICTIM, Process(tool, f"127.0.0.1:{free_port()}", VICTIM))
    return job, set()


def late(tool):
    address = f"127.0.0.1:{free_port()}"
    job = start(tool, address, [0, 1, 3])
    time.sleep(20)
    job.insert(VICTIM, Process(tool, address, VICTIM))
    until(lambda: tool.is_ready(job), job)
    for process in job:
        process.child.kill()
    return job, set(range(PROCESSES))


CASES = [killed_at_the_rendezvous, killed_in_a_step, missing, stuck, coordinator_killed, different_programs,
         wrong_address, late]


def measure(tool, case, outputs):
    job, harmed = case(tool)
    fault = time.monotonic()
    others = [process for process in job if process.index not in harmed]
    while any(process.ended is None for process in others) and time.monotonic() < fault + LIMIT:
        for process in others:
            process.look()
        time.sleep(0.01)
    outcomes = []
    for process in others:
        ended = process.ended is not None
        outcomes.append({
            "process": process.index,
            "seconds": round(process.ended - fault, 2) if ended else None,
            "exit": process.child.returncode if ended else None,
            "says": process.last_words(),
        })
    for process in job:
        process.child.kill()
        process.child.wait()
        if outputs:
            outputs.mkdir(parents=True, exist_ok=True)
            (outputs / f"{case.__name__}.{tool.name}.{process.index}").write_bytes(process.output())
    print(json.dumps({"tool": tool.name, "case": case.__name__, "others": outcomes}), flush=True)


def main():
    os.environ["SPMD_JOB_TOKEN"] = "0123456789abcdef0123456789abcdef"
    parser = argparse.ArgumentParser()
    parser.add_argument("spmd_run")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only")
    parser.add_argument("--tool")
    parser.add_argument("--outputs", type=Path)
    options = parser.parse_args()
    for case in CASES:
        for tool in [SpmdRun(options), Jax(options)]:
            if options.only in (None, case.__name__) and options.tool in (None, tool.name):
                measure(tool, case, options.outputs)


main()
