#!/usr/bin/env python3
"""Writes `corpus.zip` and `manifest.tsv`: the programs of `programs.py`, each in several of the forms in which JAX and
XLA hand them out.

Needed only to regenerate. Made with JAX 0.10.2 and NumPy 2.4.6:

    pip install 'jax[cpu]==0.10.2' && python tests/jax_corpus/generate.py

| file | what it is |
|---|---|
| `NAME.pb` | the serialized `HloModuleProto` of every program |
| `NAME.hlo` | its text: in the short form of `as_hlo_text()`, or as XLA dumps it, with metadata |
| `NAME.compiled.hlo` | text of the optimized module, `jax.stages.Compiled.as_text()` |
| `NAME.mlir`, `NAME.mlirbc` | StableHLO as text, and as the portable bytecode of `jax.export` |

The zip file holds one file, a zip file without compression, so that all programs are compressed as one.

With `--check PROGRAM`, where PROGRAM is the built example `print_hlo`, every HLO module goes through this project's
reader and printer, and what comes out through XLA's own parser: the result must be the module that JAX made.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import argparse
import difflib
import io
import re
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import jax
from jax import export
from jaxlib import _hlo

import programs

HERE = Path(__file__).resolve().parent
# Custom calls that `jax.export` writes only when told so, since later versions of JAX may lack them.
CUSTOM_CALLS = ["ApproxTopK", "xla_python_cpu_callback", "xla_ffi_python_cpu_callback"]

warnings.filterwarnings("ignore")
jax.config.update("jax_enable_x64", True)
# Metadata names source files: without their folders the corpus is the same wherever it is made.
jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")


def forms(index, program):
    """The files of one program by extension, and its optimized module. Which forms it has depends on its place."""
    jax.config.update("jax_use_shardy_partitioner", program.shardy)
    jitted = program.jit()
    lowered = jitted.lower(*program.args)
    computation = lowered.compiler_ir("hlo")
    module = computation.get_hlo_module()
    files = {"pb": module.as_serialized_hlo_module_proto()}
    files["hlo"] = text(module) if index % 2 else computation.as_hlo_text(print_large_constants=True)
    compiled = None
    if index % 3 == 0:
        executable = lowered.compile()
        files["compiled.hlo"] = executable.as_text()
        [compiled] = executable.runtime_executable().hlo_modules()
    if index % 4 == 1:
        files["mlir"] = lowered.as_text()
    if index % 4 == 3 and program.not_run != programs.PYTHON:
        checks = [export.DisabledSafetyCheck.custom_call(target) for target in CUSTOM_CALLS]
        files["mlirbc"] = bytes(export.export(jitted, disabled_checks=checks)(*program.args).mlir_module_serialized)
    return {extension: data if isinstance(data, bytes) else data.encode() for extension, data in files.items()}, compiled


def text(module, metadata=True):
    """All that XLA prints of a module; its text in dumps."""
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = metadata
    options.print_backend_config = True
    options.print_control_dependencies = True
    return module.to_string(options)


def canonical(printed):
    """The lines of a module without what means nothing: the order of computations and the numbers of stack frames."""
    table = lambda name: re.search(rf"^{name}\n(.*?)\n\n", printed, re.M | re.S)
    rows = {}
    for name in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
        found = table(name)
        rows[name] = dict(line.split(" ", 1) for line in found[1].splitlines()) if found else {}
        printed = printed.replace(found[0], "") if found else printed

    def frames(number):
        row = dict(re.findall(r"(\w+)=(\d+)", rows["StackFrames"][number]))
        place = dict(re.findall(r"(\w+)=(\d+)", rows["FileLocations"][row["file_location_id"]]))
        place["file_name_id"] = rows["FileNames"][place["file_name_id"]]
        place["function_name_id"] = rows["FunctionNames"][place["function_name_id"]]
        parent = row["parent_frame_id"]
        return str(place) + (frames(parent) if parent != number else "")

    printed = re.sub(r"stack_frame_id=(\d+)", lambda match: frames(match[1]), printed)
    header, *lines = [line for line in printed.splitlines() if line]
    computations = [computation.strip() for computation in "\n".join(lines).split("\n}")]
    return [header, *"\n".join(sorted(computations)).splitlines()]


def zipped(files, compression):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, data in files:
            archive.writestr(zipfile.ZipInfo(name), data, compression, compresslevel=9)
    return raw.getvalue()


def differences(printer, name, extension, data, original):
    """What XLA makes of this project's print of one module, compared with the module as it was; empty if the same."""
    with tempfile.NamedTemporaryFile(suffix="." + extension) as file:
        file.write(data)
        file.flush()
        ours = subprocess.run([printer, file.name], capture_output=True, text=True)
    if ours.returncode:
        return ours.stderr
    try:
        again = _hlo.hlo_module_from_text(ours.stdout)
    except Exception as error:
        return f"XLA refuses our print: {error}"
    metadata = extension == "pb" or b"metadata={" in data
    wanted, got = (canonical(text(module, metadata)) for module in (original, again))
    if got == wanted:
        return ""
    # XLA's own parser loses signs of zeros, parts of complex NaNs, and what the text leaves out.
    theirs = data.decode() if extension.endswith("hlo") else text(original)
    read = canonical(text(_hlo.hlo_module_from_text(theirs), metadata))
    if "{...}" in theirs:
        # The filler of constants without values differs from call to call.
        got, read = (re.sub(r"constant\(\{.*\}\)", "constant", "\n".join(lines)) for lines in (got, read))
    if got == read:
        return ""
    return "\n".join(difflib.unified_diff(wanted, got, "JAX's", "ours", lineterm="", n=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="PROGRAM", help="compare with XLA's parser instead of writing the corpus")
    printer = parser.parse_args().check
    files, rows, counts, failures = [], ["name\tpartitions\tnot_run"], Counter(), 0
    for index, program in enumerate(programs.programs()):
        produced, compiled = forms(index, program)
        counts.update(produced.keys())
        if printer:
            for extension, data in produced.items():
                if extension.startswith("mlir"):
                    continue
                is_compiled = extension == "compiled.hlo"
                original = compiled if is_compiled else _hlo.HloModule.from_serialized_hlo_module_proto(produced["pb"])
                difference = differences(printer, program.name, extension, data, original)
                if difference:
                    failures += 1
                    print(f"{program.name}.{extension} differs:\n{difference}\n")
            continue
        files += [(f"{program.name}.{extension}", data) for extension, data in produced.items()]
        rows.append(f"{program.name}\t{program.partitions}\t{program.not_run}")
    print(len(rows) - 1 if not printer else sum(counts[e] for e in ("pb", "hlo", "compiled.hlo")), dict(counts))
    if printer:
        sys.exit(f"{failures} modules differ" if failures else 0)
    # Like beside like compresses better.
    files.sort(key=lambda file: file[0].partition(".")[::-1])
    corpus = zipped([("files.zip", zipped(files, zipfile.ZIP_STORED))], zipfile.ZIP_DEFLATED)
    (HERE / "corpus.zip").write_bytes(corpus)
    (HERE / "manifest.tsv").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
