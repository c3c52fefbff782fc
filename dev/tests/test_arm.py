"""The kernels of AArch64 under emulation: `pytest -m arm --arm FOLDER dev/tests/test_arm.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.arm import emulation, table
from dev.arm.__main__ import answer, answer_here, run_tests

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
@pytest.mark.parametrize("cpu", emulation.CPUS)
def test_a_real_answer_has_the_ids_and_the_logits_of_this_processor_on(
    cpu: str, sysroot: Path, default_model: Path
) -> None:
    theirs, ours = answer(sysroot, cpu, default_model), answer_here(default_model)
    assert theirs["isa"] == emulation.CPUS[cpu]
    assert (theirs["ids"], theirs["logits"]) == (ours["ids"], ours["logits"])


def test_without_a_folder_emulation_says_what_is_missing(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        assert emulation.missing(folder) is not None


def test_counts_are_what_further_passes_add_to_a_call() -> None:
    printed = "neon q4_0 4 100\n"
    marked = "".join(f"count {i} {n}\n" for i, n in enumerate((0, 70, 1000, 1120)))
    assert table.read(printed, "noise\n" + marked) == {("neon", "q4_0", 4): 0.5}
