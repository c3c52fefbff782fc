"""Each of these changes to the kernels is found: so the comparison with the CPU sees the order of every sum."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import forerun.gpu
from forerun.core.batch import Segment
from forerun.model.config import ExpertsConfig, LayerConfig
from tests.gpu.oracle import Both
from tests.gpu.test_choice import has_the_scores
from tests.native.models import GATED, ROPE, random_weights, text

ROOM = Path(forerun.gpu.__file__).parent
EXPERTS = ExpertsConfig(8, 3, 32, num_groups=4, num_active_groups=2, group_best=2)
CONFIG = replace(
    GATED,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    attention_scale=0.02,
    layers=(LayerConfig(ROPE, experts=EXPERTS),),
)
TREE = (-1, 0, 0, 1, 1, 3)
MUTANTS = {
    "the dot is rounded before it is added": (
        "kernels",
        "acc = tl.fma(dot.to(tl.float32), scale[None] * row_scale, acc)",
        "acc = acc + dot.to(tl.float32) * (scale[None] * row_scale)",
    ),
    "the dot is scaled by the weight first": (
        "kernels",
        "tl.fma(dot.to(tl.float32), scale[None] * row_scale, acc)",
        "tl.fma(dot.to(tl.float32) * scale[None], row_scale, acc)",
    ),
    "a minimum is multiplied by the sum of the numbers": (
        "numbers",
        "scale * tl.sum(code, 1).to(tl.float32)",
        "tl.sum(y, 1)",
    ),
    "a scale is made by multiplying": (
        "numbers",
        "tl.div_rn(tl.where(is_zero, 0.0, largest), 127.0)",
        "tl.where(is_zero, 0.0, largest) * (1.0 / 127.0)",
    ),
    "a norm multiplies its factor with the weights first": (
        "kernels",
        "if HAS_BIAS else y * scale\n",
        "if HAS_BIAS else tl.load(x + row * X + at, is_there, 0.0) * (factor[:, None] * scale)\n",
    ),
    "exponentials are added in pairs": (
        "numbers",
        "((first + second) + third) + fourth",
        "(first + second) + (third + fourth)",
    ),
    "the polynomial is not fused": ("numbers", "y = tl.fma(y, r, 1.0)", "y = y * r + 1.0"),
    "a rotation is fused": ("placement", "turned = y * c + tl", "turned = tl.fma(y, c, tl"),
    "siblings are seen": ("attention", "tl.load(path + here - base, seen & is_above, 0)", "here"),
    "runs end elsewhere": ("passes", "CHUNKS_OF_A_RUN = 2", "CHUNKS_OF_A_RUN = 1"),
    "runs are merged the other way round": (
        "attention",
        "tl.fma(young_out, young, out * old)",
        "tl.fma(out, old, young_out * young)",
    ),
    "what an expert gives is fused with the sum": (
        "routing",
        "total = total + tl.load(weights + pair) * tl.load(given + pair * D + at, at < D, 0.0)",
        "total = tl.fma(tl.load(weights + pair), tl.load(given + pair * D + at, at < D, 0.0), total)",
    ),
    "experts are added from the last one": (
        "routing",
        "pair = row * ACTIVE + i\n",
        "pair = row * ACTIVE + ACTIVE - 1 - i\n",
    ),
    "a group of experts is as good as its best": ("routing", "if BEST == 2:", "if BEST == 3:"),
    "silu divides x": (
        "kernels",
        "y = x * sigmoid(x)\n",
        "y = tl.div_rn(x, tl.div_rn(1.0, sigmoid(x)))\n",
    ),
}
CLOSED = {"a rotation is fused": ("partner) * s\n", "partner) * s)\n")}
"""What a change needs besides."""


FLOATS = ("layers.0.o", "layers.0.down", "layers.0.expert_down")
"""Which see the last bit of what codes would hide."""


def finds(room: ModuleType) -> bool:
    """Whether the bits of a chain and a tree over the end of a run differ from the CPU's."""
    weights = random_weights(CONFIG, "q4_1")
    floats = random_weights(CONFIG, "f32")
    weights |= {name: floats[name] for name in FLOATS}
    models = Both.of(CONFIG, weights, room)
    caches = models.caches("fp16")
    models.read(caches, 0, text(127))
    return not models.compare(caches, Segment(0, 127, text(6, 1), TREE))


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """A copy of the room, in which some text of a file is another."""

    def make(name: str, file: str = "", *changes: tuple[str, str]) -> ModuleType:
        package = tmp_path / name
        package.mkdir()
        for path in ROOM.glob("*.py"):
            source = path.read_text().replace("forerun.gpu", name)
            for old, new in changes if path.stem == file else ():
                assert source.count(old) == 1, (path, old)
                source = source.replace(old, new)
            (package / path.name).write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        return importlib.import_module(f"{name}.load")

    yield make
    for module in [*sys.modules]:
        if module.startswith("broken"):
            del sys.modules[module]


def test_a_copy_as_it_is_has_the_bits(copy) -> None:
    assert not finds(copy("broken"))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_kernel_is_found(copy, mutant: str) -> None:
    file, *change = MUTANTS[mutant]
    more = [CLOSED[mutant]] if mutant in CLOSED else []
    name = f"broken{[*MUTANTS].index(mutant)}"
    assert finds(copy(name, file, tuple(change), *more))


def test_a_score_that_is_fused_is_found(copy) -> None:
    change = "z * factor + gumbel(i, low, high)", "tl.fma(z, factor, gumbel(i, low, high))"
    copy("broken_draw", "scores", change)
    assert not has_the_scores(importlib.import_module("broken_draw.choice"))
