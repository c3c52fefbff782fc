"""Before an instruction set is chosen, all its kernels are held against the portable ones on this processor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from forerun import _native
from forerun.core.errors import ConfigError
from forerun.model.backends.native import NativeDecoder
from forerun.model.kernels import native
from tests.native.test_flat import WIDE

ISAS = _native.runnable_isas()
KERNELS = _native.checked_kernels()


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_passes_here(isa: str) -> None:
    assert _native.wrong_kernels(isa) == []


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_that_writes_one_byte_wrong_is_found_and_no_other_is_blamed(
    kernel: str, isa: str
) -> None:
    assert _native.wrong_kernels(isa, broken=kernel) == [kernel]


def test_every_kernel_has_a_check_of_its_own() -> None:
    assert len(set(KERNELS)) == len(KERNELS)  # and the build fails unless they are as many
    with pytest.raises(ValueError, match="no kernel is called warp_drive"):
        _native.wrong_kernels("portable", broken="warp_drive")


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="sanitizers take their time")
def test_the_check_takes_a_few_milliseconds() -> None:
    """Counted in a loop of 2.5 ms where the check takes 14, for machines differ and are busy."""

    def seconds(run: Callable[[], object]) -> float:
        start = time.thread_time()
        run()
        return time.thread_time() - start

    def loops() -> float:
        check = seconds(lambda: _native.wrong_kernels(ISAS[0]))
        return check / seconds(lambda: sum(range(200_000)))

    assert min(loops() for _ in range(20)) < 8


@pytest.mark.parametrize(
    ("machine", "runnable", "why"),
    [
        ("aarch64", ["portable"], "no dot products"),
        ("arm64", ["portable"], "no dot products"),
        ("AMD64", ["portable"], "no AVX2"),
        ("riscv64", ["portable"], "no others for riscv64"),
        ("x86_64", ["avx2", "portable"], "avx2 did not pass the check"),
    ],
)
def test_portable_kernels_say_why_they_run(machine: str, runnable: list[str], why: str) -> None:
    assert why in native.portable_reason(machine, runnable)


def test_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for isa in ISAS:
        monkeypatch.setenv(native.ISA, isa)
        assert NativeDecoder(WIDE).isa == isa
    monkeypatch.setenv(native.ISA, "avx5")
    with pytest.raises(ConfigError, match="unknown instruction set in FORERUN_ISA 'avx5'"):
        NativeDecoder(WIDE)


def test_that_portable_kernels_run_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    native.note_choice.cache_clear()
    for isa in (*ISAS, *ISAS):
        native.note_choice(isa)
    assert ["portable kernels run" in message for message in caplog.messages] == [True]
    native.note_choice.cache_clear()
