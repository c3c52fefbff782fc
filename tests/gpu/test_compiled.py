"""Compiled for real cards, without one, the kernels have the integer dots and no operation that rounds otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTEGER_DOTS = (
    "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32"  # 32 x 127 x 127 cannot saturate
)
ROUNDED = {
    "fma.rn.f32",
    "add.rn.f32",
    "sub.rn.f32",
    "mul.rn.f32",
    "div.rn.f32",
    "sqrt.rn.f32",
    "cvt.rn.f16.f32",
    *("fma.rn.f64", "add.rn.f64", "sub.rn.f64", "mul.rn.f64", "cvt.rn.f32.f64"),
}
"""`.rn` forbids the assembler to fuse a multiplication with an addition."""
EXACT = {
    *(f"{word}.f32" for word in ("abs", "neg", "max", "min", "max.NaN", "min.NaN", "mov", "selp")),
    *(f"setp.{how}.f32" for how in ("eq", "ge", "gt", "le", "lt", "neu", "num", "nan", "equ", "gtu", "ltu")),
    "selp.f64", "cvt.f64.f32", "cvt.rn.f32.u32",
    *(f"cvt.{kind}" for kind in ("f32.bf16", "f32.f16", "rzi.s16.f32", "rzi.s32.f32", "rn.f32.s16", "rn.f32.s32")),
}  # fmt: skip
HAS_DOTS = ("linear q", "attend int8")
CARDS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120")


def compiled(*cards: str) -> dict[str, dict]:
    """What `compiled.py` says, in a process that does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.gpu.compiled", *cards]
    done = subprocess.run(
        command, env=environment | {"PYTHONPATH": paths}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("card", CARDS)
def test_every_kernel_rounds_as_the_cpu_does(card: str) -> None:
    for kernel, found in compiled(card).items():
        words = {word.replace("f32x2", "f32") for word in found["words"]}  # two at once
        floats = {word for word in words if any(kind in word for kind in ("f32", "f16", "f64"))}
        assert {
            word for word in floats if not word.startswith(("ld.", "st.", "mov."))
        } <= ROUNDED | EXACT, kernel
        assert not {
            word for word in words if word.startswith(("atom", "red.")) or "approx" in word
        }, kernel
        assert (INTEGER_DOTS in words) == any(name in kernel for name in HAS_DOTS), kernel
        assert "bar.sync" in words or not kernel.endswith((" in place", " normed after")), kernel
        assert found["REG"] <= 168, kernel
        assert found["SPILLS"] == 0, kernel


@pytest.mark.slow
@pytest.mark.parametrize(("card", "dots"), [("gfx942", "mfma_i32"), ("gfx1100", "wmma_i32")])
def test_amd_cards_have_integer_dots_too(card: str, dots: str) -> None:
    for kernel, found in compiled(card).items():
        if any(name in kernel for name in HAS_DOTS):
            assert any(dots in word for word in found["words"]), kernel
