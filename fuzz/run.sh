#!/usr/bin/env bash
# Fuzzes each target: fuzz/run.sh [EXECUTIONS [TARGET…]]. Needs a nightly compiler and cargo-fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."

executions=${1:-100000}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(hlo_text hlo_proto npz wire)

for target in "${targets[@]}"; do
    seeds=fuzz/corpus/$target
    mkdir -p "$seeds"
    case $target in
        hlo_text) find hlo tests/data -size -4k -name '*.hlo' -exec cp {} "$seeds" \; ;;
        hlo_proto) find hlo tests/data -size -4k \( -name '*.hlo' -o -name '*.pb' -o -name '*.mlir*' \) -exec cp {} "$seeds" \; ;;
        npz)
            find hlo/data tests/data -size -16k -name '*.npz' -exec cp {} "$seeds" \;
            find tests/data -size -16k -name '*.npy' -exec cp {} "$seeds" \;
            ;;
        # Short frames: the lengths of header and body, a call number, a message.
        wire)
            for message in 0 2 3 8; do
                printf "\\2\\0\\0\\0\\0\\0\\0\\0\\1\\$message" >"$seeds/short$message"
                printf "\\7\\0\\0\\0\\1\\0\\0\\0\\1\\$message\\1a\\1\\1\\1x" >"$seeds/named$message"
            done
            ;;
    esac
    # Short inputs and a plain choice among them: libFuzzer itself would take more time than the readers.
    cargo +nightly fuzz run -s none "$target" -- -runs="$executions" -max_len=1024 -len_control=0 -entropic=0 \
        -reduce_inputs=0 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
done
