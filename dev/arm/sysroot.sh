#!/bin/sh
# Makes the folder that `make arm` needs: Debian 12's Python for arm64 in FOLDER/root, and the tests' packages as
# aarch64 wheels in FOLDER/site. Nothing is installed on this system; apt keeps all its state in FOLDER/apt.
# Wants apt, dpkg, and a pip for Python 3.11: dev/arm/sysroot.sh FOLDER [PIP]
set -eu
folder=$(realpath -m "$1")
pip=${2:-pip}
mkdir -p "$folder/apt/state/lists/partial" "$folder/apt/cache/archives/partial" "$folder/root" "$folder/site"
: > "$folder/apt/status" # an empty list of what is installed: apt fetches all that Python needs
cat > "$folder/apt/apt.conf" << END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "";
Dir::State "$folder/apt/state";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
END
export APT_CONFIG="$folder/apt/apt.conf"
apt-get update
apt-get install --download-only --yes python3.11 libgomp1 libstdc++6
for package in "$folder"/apt/cache/archives/*.deb; do dpkg --extract "$package" "$folder/root"; done

# Without their own dependencies: those of torch's wheel would be CUDA's gigabytes.
"$pip" install --target "$folder/site" --upgrade --no-deps --only-binary=:all: --python-version 3.11 \
  --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
  --platform any \
  torch==2.9.1 annotated-doc anyio certifi charset-normalizer click filelock fsspec gguf h11 httpcore httpcore2 \
  httpx httpx2 huggingface-hub hypothesis idna iniconfig jinja2 markdown-it-py markupsafe mdurl mpmath nanobind \
  networkx numpy packaging pluggy pygments pytest pyyaml regex requests rich safetensors shellingham \
  sniffio sortedcontainers sympy \
  tokenizers tqdm transformers truststore typer typing-extensions urllib3
