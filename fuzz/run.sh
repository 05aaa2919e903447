#!/usr/bin/env bash
# Fuzzes each target: fuzz/run.sh [EXECUTIONS [TARGET…]]. Needs a nightly compiler and cargo-fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."

executions=${1:-100000}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(hlo_text hlo_proto npz)

for target in "${targets[@]}"; do
    seeds=fuzz/corpus/$target
    mkdir -p "$seeds"
    case $target in
        hlo_text) cp hlo/*.hlo tests/data/*.hlo "$seeds" 2>/dev/null || true ;;
        hlo_proto) cp hlo/* tests/data/*.hlo "$seeds" 2>/dev/null || true ;;
        npz)
            find hlo/data tests/data -size -16k -name '*.npz' -exec cp {} "$seeds" \;
            find tests/data -size -16k -name '*.npy' -exec cp {} "$seeds" \;
            ;;
    esac
    cargo +nightly fuzz run -s none "$target" -- -runs="$executions" -max_len=4096 -len_control=0 -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1
done
