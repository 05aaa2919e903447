#!/usr/bin/env bash
# ./run.sh              builds spmd-run, fetches the CPU plugin once, runs the main sample over 4 processes x 2 devices
# ./run.sh test [ARGS]  runs the whole test suite; ARGS go to `cargo nextest run` (or `cargo test`)
# ./run.sh ray          installs Ray for the tests, once, and prints the path of the Python that has it
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")"

has() { command -v "$1" >/dev/null 2>&1; }

# Plugins are Python wheels, so pip fetches them. Nothing else is missing on a Debian with Rust, gcc and Python.
ensure_pip() {
    if python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("pip") is None)' 2>/dev/null; then
        return
    fi
    if ! has apt-get; then
        echo "run.sh: python3 with pip is missing; a plugin that is not cached yet cannot be fetched" >&2
        return
    fi
    local root=()
    [ "$(id -u)" -eq 0 ] || root=(sudo)
    "${root[@]}" apt-get update -qq >&2
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip >&2
}

# Prints a command as a user would type it, and runs it.
show() {
    printf '\n$ spmd-run %s\n' "$*"
    target/release/spmd-run "$@"
}

main_job() {
    cargo build --release --locked --bin spmd-run
    [ -n "${PJRT_PLUGIN_LIBRARY_PATH:-}" ] || target/release/spmd-run plugin install cpu >/dev/null

    local program=hlo/dp_tp_mlp_step.hlo data=hlo/data/dp_tp_mlp_step
    results=$(mktemp -d)
    trap 'rm -rf "$results"' EXIT

    show devices -n 4 --devices-per-process 2
    show -n 4 --devices-per-process 2 $program --input $data.in.npz --expect $data.out.npz --rtol 1e-5 --atol 1e-5 \
        --warmup 10 --repeat 100 --output "$results/four.npz"
    show -n 1 --devices-per-process 8 $program --input $data.in.npz --expect "$results/four.npz" --rtol 1e-6 --atol 1e-6
}

# Installs a plugin for the tests and prints its path.
plugin() {
    local line
    line=$(target/debug/spmd-run plugin install "$1")
    echo "${line% (*)}"
}

# Installs Ray for the tests, once, and prints the path of the Python that has it.
ray_python() {
    local version=2.60.0
    local venv=${XDG_CACHE_HOME:-$HOME/.cache}/spmd-run/ray-$version
    if [ ! -e "$venv/installed" ]; then
        python3 -m venv --clear "$venv" >&2 || return
        "$venv/bin/pip" install -q --disable-pip-version-check "ray==$version" >&2 || return
        touch "$venv/installed"
    fi
    echo "$venv/bin/python3"
}

tests() {
    cargo build --locked --quiet --bin spmd-run --examples
    # The first is the plugin that tests load, the others are for the tests of compatibility.
    local cpu older oldest
    cpu=$(plugin cpu)
    older=$(plugin cpu-0.106)
    oldest=$(plugin cpu-0.81)
    export PJRT_PLUGIN_LIBRARY_PATH=$cpu SPMD_TEST_PLUGINS=$older:$oldest
    if SPMD_TEST_RAY=$(ray_python); then
        export SPMD_TEST_RAY
    else
        echo "run.sh: Ray cannot be installed: its test is skipped" >&2
        unset SPMD_TEST_RAY
    fi

    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --locked "$@"
    else
        cargo test --locked --lib --bins --tests --examples "$@"
    fi
    [ $# -gt 0 ] || cargo test --locked --doc
}

if ! has cargo; then
    echo "run.sh: cargo is missing; install Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or newer" >&2
    exit 1
fi
ensure_pip
case "${1:-}" in
    "") main_job ;;
    test) shift; tests "$@" ;;
    ray) ray_python ;;
    *) echo "usage: ./run.sh [test [ARGS] | ray]" >&2; exit 2 ;;
esac
