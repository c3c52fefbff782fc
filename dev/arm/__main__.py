"""`python -m dev.arm SYSROOT [tests] [receipt] [counts]`: build the kernels for AArch64 and show them under emulation.

Three CPU models: without dotprod, with it, with i8mm. `tests` runs the native suite, what depends on the instruction
set on all of them and the rest on the one that has all kernels. `receipt` holds the default model's answers to those of
an x86-64 processor (`benchmarks/receipt`). `counts` prints instructions per multiplication. `make arm ARM=SYSROOT` does
the first two.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dev.arm import emulation, table
from forerun.core.config import DEFAULT_MODEL
from forerun.hub import names

RECEIPT = emulation.REPOSITORY / "benchmarks" / "receipt"
ASKED = (
    *("--prompts", RECEIPT / "prompts.txt", "-n", "20", "-t", "2"),
    *("--against", RECEIPT / "smollm2.json"),
)
KERNELS = (
    "tests/native/test_isa_check.py",
    "tests/native/test_row_law.py",
    "tests/native/test_recurrent.py",
    "tests/native/test_head.py",
    "tests/native/test_flat.py",
    "tests/model/test_row_law.py",
)
"""Where each CPU model's kernels, chosen as they are there, decide."""
REST = (
    "tests/native/test_weights.py",
    "tests/native/test_decoder.py",
    "tests/native/test_draft_network.py",
    "tests/native/test_eagle_network.py",
    "tests/native/test_guess_tree.py",
    "tests/native/test_suffix_index.py",
    "tests/native/test_families.py",
    "tests/model/kernels",
)
"""Run once, where all kernels can be chosen."""
PYTEST = (
    *("-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-o", "pythonpath=."),
    *("-o", "addopts=--import-mode=importlib", "-m", "not slow and not gpu and not net"),
    # These measure time, and ask for memory that an emulator maps page by page.
    *("--deselect", "tests/native/test_isa_check.py::test_the_check_takes_a_few_milliseconds"),
    *("--deselect", "tests/native/test_decoder.py::test_arrays_of_the_wrong_shape_are_refused"),
    # torch's own decoders.
    *("--deselect", "tests/model/test_row_law.py::test_any_number_of_threads"),
    *("--deselect", "tests/model/test_row_law.py::test_the_head_obeys_it"),
)


def run_tests(
    sysroot: Path, cpu: str, selected: Sequence[str], *, shown: bool = False
) -> tuple[bool, str]:
    """Run tests on a CPU model; whether they pass there, and what pytest wrote if it was not shown as it came."""
    done = emulation.run(sysroot, cpu, [*PYTEST, *selected], shown=shown)
    return done.returncode == 0, "" if shown else done.stdout.strip() + done.stderr


def hold_receipt(sysroot: Path, cpu: str) -> tuple[str, list[object]]:
    """Return the instruction set that a CPU model chose, and where its answers differ from the receipt's.

    Raises RuntimeError with what was written if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "receipt.json"
        words: list[str | Path] = ["-m", "forerun", "verify", *ASKED, "--receipt", own, "--json"]
        done = emulation.run(sysroot, cpu, words)
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stderr)
        made_on = json.loads(own.read_text())["made_on"]
    return made_on["isa"], json.loads(done.stdout.splitlines()[-1])["against"]


def _show_tests(sysroot: Path, cpu: str) -> bool:
    start = time.monotonic()
    rest = REST if emulation.CPUS[cpu] == "neon_i8mm" else ()
    print(f"{cpu}:", flush=True)
    passed, _ = run_tests(sysroot, cpu, [*KERNELS, *rest], shown=True)
    verdict = "passed" if passed else "failed"
    print(f"{cpu}: tests {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    return passed


def _show_receipt(sysroot: Path, cpu: str) -> bool:
    isa, different = hold_receipt(sysroot, cpu)
    print(f"{cpu}: {isa} against the receipt: {different or 'identical'}", flush=True)
    return not different and isa == emulation.CPUS[cpu]


def main() -> int:
    """Build, run what was asked for, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dev.arm", description=__doc__)
    parser.add_argument("sysroot", type=Path, help="the folder that dev/arm/sysroot.sh makes")
    parser.add_argument("what", nargs="*", choices=["tests", "receipt", "counts", []])
    parser.add_argument("--cpu", choices=sorted(emulation.CPUS), action="append")
    given = parser.parse_args()
    if (reason := emulation.missing(given.sysroot)) is not None:
        parser.error(reason)
    cpus, what = given.cpu or list(emulation.CPUS), given.what or ["tests", "receipt"]
    sysroot = given.sysroot.resolve()
    emulation.build(sysroot)
    good = True
    if "receipt" in what:
        names.pull(DEFAULT_MODEL)
        for cpu in cpus:
            good &= _show_receipt(sysroot, cpu)
    if "tests" in what:
        for cpu in cpus:
            good &= _show_tests(sysroot, cpu)
    if "counts" in what:
        print(table.measure(sysroot))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
