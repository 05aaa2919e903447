"""Times this project's HLO parser and XLA's own on the same texts, in one run on one machine.

    python benches/parse_vs_xla.py

Runs `cargo bench --bench hlo_parse`, then gives the texts that it leaves behind to jaxlib's `hlo_module_from_text`.
Needs jax. Prints medians in MB/s and their ratio.
"""

import json
import pathlib
import statistics
import subprocess
import time

from jaxlib import _hlo

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPEATS = 5


def xla_seconds(text):
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        module = _hlo.hlo_module_from_text(text)
        times.append(time.perf_counter() - start)
        del module
    return statistics.median(times)


def main():
    subprocess.run(["cargo", "bench", "--bench", "hlo_parse"], cwd=ROOT, check=True)
    metadata = subprocess.check_output(["cargo", "metadata", "--format-version=1", "--no-deps"], cwd=ROOT)
    target = pathlib.Path(json.loads(metadata)["target_directory"])
    print(f"{'text':10} {'MB':>6} {'here':>8} {'with serialization':>19} {'XLA':>6} {'ratio':>6}")
    for path in sorted((target / "tmp/hlo_parse").glob("*.hlo")):
        text = path.read_text()
        size = path.stat().st_size / 1e6

        def rate(function):
            estimates = target / f"criterion/hlo_parse/{path.stem}_{function}/new/estimates.json"
            return size / (json.loads(estimates.read_text())["median"]["point_estimate"] * 1e-9)

        parse, serialize = rate("parse"), rate("parse_and_serialize")
        xla = size / xla_seconds(text)
        print(f"{path.stem:10} {size:6.2f} {parse:8.1f} {serialize:19.1f} {xla:6.1f} {parse / xla:6.1f}")


if __name__ == "__main__":
    main()
