#!/usr/bin/env bash
# On a machine with a CUDA GPU and no network: builds llama-cpp-python from the kit, runs tests with everything on the GPU,
# and measures. Meant to end within 12 minutes on 16 cores.
#
#   tests/gpu/run.sh [FOLDER OF THE KIT]      (default: .gpu-kit, made by tests/gpu/kit.sh)
#
# PYTHON names the interpreter (3.12, with numpy); BACKEND=cpu builds without CUDA, to try the script itself. Results go to
# $OUT, or to gpu-results.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=${1:-.gpu-kit}
out=${OUT:-gpu-results}
python=${PYTHON:-python3}
backend=${BACKEND:-cuda}
mkdir -p "$out"
started=$(date +%s)
took() { echo "== $1: after $(($(date +%s) - started)) s"; }

site=$(mktemp -d)
"$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$kit"/wheels/*.whl
export PYTHONPATH="$site:$PWD" PYTHONUNBUFFERED=1
took "wheels"

source=$(mktemp -d)
tar -xzf "$kit/llama-cpp-python.tar.gz" -C "$source"
echo 'set(LLAMA_BUILD_COMMON OFF)' > "$source/llama.cmake"
flags="-DLLAVA_BUILD=OFF -DCMAKE_PROJECT_llama_cpp_INCLUDE=$source/llama.cmake -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF"
if [ "$backend" = cuda ]; then flags="$flags -DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=native"; fi
CMAKE_ARGS="$flags" CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) \
    "$python" -m pip install --quiet --no-index --no-deps --no-build-isolation --no-compile --target "$site" "$source"
took "llama.cpp for $backend"

"$python" -m specd doctor | tee "$out/doctor.txt" || true
"$python" -m tests.gpu.measure "$out" 2>&1 | tee "$out/measure.txt"
took "measured"
"$python" -m pytest tests/model/test_architectures.py -k "not gemma and not headers" -q -p no:cacheprovider 2>&1 | tee "$out/tests.txt"
took "tested"
