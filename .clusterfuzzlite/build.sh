#!/usr/bin/env bash
# Builds the fuzz targets into $OUT, as ClusterFuzzLite and OSS-Fuzz ask for: each with its seeds, its dictionary and the longest
# input that says anything new. Takes cargo-fuzz and zip, which their image has.
set -euo pipefail
: "${SRC:?}" "${OUT:?}" "${SANITIZER:=address}" "${FUZZING_ENGINE:=libfuzzer}"
[ "$FUZZING_ENGINE" = libfuzzer ] || { echo "the targets are for libfuzzer, not $FUZZING_ENGINE" >&2; exit 1; }
cd "$SRC/gapless"
flags=(-O --debug-assertions)
case $SANITIZER in
    # The engine's flags for coverage are in RUSTFLAGS.
    coverage) flags+=(--sanitizer none) ;;
    *) flags+=(--sanitizer "$SANITIZER") ;;
esac
built=${CARGO_TARGET_DIR:-$PWD/fuzz/target}
# RUSTC_BOOTSTRAP: cargo-fuzz passes flags that a stable compiler takes only so.
RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$built cargo fuzz build "${flags[@]}"
# Loaded by the target capi. Without the sanitizer, whose run-time library is in the target's executable.
RUSTFLAGS='' CARGO_TARGET_DIR=$built cargo build --package gapless-sim-libcuda
cp "$built/debug/libgapless_sim_libcuda.so" "$OUT/"

for source in fuzz/fuzz_targets/*.rs; do
    target=$(basename "$source" .rs)
    cp "$built/x86_64-unknown-linux-gnu/release/$target" "$OUT/"
    rm -f "$OUT/${target}_seed_corpus.zip"
    zip --quiet --junk-paths "$OUT/${target}_seed_corpus.zip" "fuzz/corpus/$target"/*
    if [ -f "fuzz/dictionaries/$target.dict" ]; then cp "fuzz/dictionaries/$target.dict" "$OUT/"; fi
    longest=$(scripts/fuzz-campaign --longest-input "$target")
    printf '[libfuzzer]\nmax_len = %d\nlen_control = 0\ntimeout = 60\nrss_limit_mb = 4096\n' "$longest" >"$OUT/$target.options"
done
