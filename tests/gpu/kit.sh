#!/usr/bin/env bash
# Gathers what tests/gpu/run.sh needs on a machine without network: the source of llama-cpp-python, without what a build
# for one GPU does not read, and wheels for Python 3.12 on x86-64 Linux. Run it where pip reaches an index.
#
#   tests/gpu/kit.sh [FOLDER]      (default: .gpu-kit, which git ignores)
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=${1:-.gpu-kit}
python=$(ls .venv/bin/python 2>/dev/null || command -v python3)
mkdir -p "$kit/wheels"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$work" 'llama-cpp-python>=0.3.36,<0.4'
tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
source=$(ls -d "$work"/llama_cpp_python-*/)
llama=$source/vendor/llama.cpp
rm -rf "$llama"/{docs,examples,media,models,tests,tools,benches,gguf-py,requirements,ci,.github,.devops} "$source"/{docs,examples,tests}
for backend in "$llama"/ggml/src/ggml-*/; do
    case $(basename "$backend") in ggml-cpu | ggml-cuda) ;; *) rm -rf "$backend" ;; esac
done
tar -czf "$kit/llama-cpp-python.tar.gz" -C "$source" .

platforms=()
for version in 2_34 2_31 2_28 2_27 2_24 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${version}_x86_64"); done
"$python" -m pip download --quiet --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --dest "$kit/wheels" \
    typer rich huggingface-hub platformdirs filelock jinja2 prompt-toolkit pygal tomlkit jsonschema lark 'llguidance>=1.9,<2' \
    diskcache gguf pytest hypothesis pexpect pyte scikit-build-core hatchling
rm -f "$kit"/wheels/numpy-*.whl # there is one on such machines
du -sh "$kit"
