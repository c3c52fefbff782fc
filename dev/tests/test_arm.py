"""The kernels of AArch64 under emulation: `pytest -m arm --arm FOLDER dev/tests/test_arm.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.arm import emulation, table
from dev.arm.__main__ import hold_receipt, run_tests

QUICK = ("tests/native/test_isa_check.py", "tests/model/test_row_law.py")


@pytest.fixture(scope="module")
def sysroot(pytestconfig: pytest.Config) -> Path:
    given = pytestconfig.getoption("--arm", None)
    folder = None if given is None else Path(given).resolve()
    if (reason := emulation.missing(folder)) is not None:
        pytest.skip(reason)
    assert folder is not None
    emulation.build(folder)
    return folder


@pytest.mark.arm
@pytest.mark.parametrize("cpu", emulation.CPUS)
def test_kernels_and_row_law_hold_on(cpu: str, sysroot: Path) -> None:
    passed, said = run_tests(sysroot, cpu, QUICK)
    assert passed, said


@pytest.mark.arm
@pytest.mark.usefixtures("default_model")
@pytest.mark.parametrize("cpu", emulation.CPUS)
def test_answers_have_the_tokens_and_states_of_the_receipt_on(cpu: str, sysroot: Path) -> None:
    assert hold_receipt(sysroot, cpu) == (emulation.CPUS[cpu], [])


def test_without_a_folder_emulation_says_what_is_missing(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        assert emulation.missing(folder) is not None


def test_counts_are_what_further_passes_add_to_a_call() -> None:
    printed = "neon q4_0 4 100\n"
    marked = "".join(f"count {i} {n}\n" for i, n in enumerate((0, 70, 1000, 1120)))
    assert table.read(printed, "noise\n" + marked) == {("neon", "q4_0", 4): 0.5}
