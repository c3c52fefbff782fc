"""The documentation's code runs, and its generated parts are up to date."""

import re
import sys
import types
from pathlib import Path

import pytest

from dev import models_page
from forerun.core import registry
from forerun.drafters.base.contract import Target
from tests.engine.harness import GREEDY, LOOPING, complete, engine_for, plain
from tests.tiny import tiny_model

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def python_blocks(path: str) -> list[str]:
    return BLOCK.findall((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "page", ["README.md", "docs/quickstart.md", "docs/python.md", "docs/serving.md"]
)
def test_the_examples_of_a_page_run(page, default_model, capsys):
    blocks = python_blocks(page)
    assert blocks
    shared: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), shared)
    assert capsys.readouterr().out.strip()


def test_the_table_of_models_has_a_test_for_every_way_a_family_loads():
    lines = (line for line in models_page.page().splitlines() if line.startswith("| "))
    rows = dict(line.strip("| ").split(" | ", 1) for line in lines)
    for family in registry.names("model.arch"):
        cells = rows[family].split(" | ")
        assert [cell[0] for cell in cells[:2]] == ["A", "B"], family
        has_gguf = registry.load("model.arch", family).GGUF_ARCHITECTURES or family == "mixtral"
        assert [cell[0] for cell in cells[2:]] == (["C", "D"] if has_gguf else ["-", "-"]), family


@pytest.mark.parametrize("source", python_blocks("docs/adding-a-drafter.md"))
def test_a_drafter_of_the_tutorial_is_a_drafter(source, monkeypatch):
    module = types.ModuleType("tutorial")
    monkeypatch.setitem(sys.modules, "tutorial", module)
    exec(compile(source, "tutorial", "exec"), module.__dict__)
    model = tiny_model(3, sharpness=3.0)
    target = Target(model, None, 4, 256)
    has_example = hasattr(module, "METHOD")
    options = module.METHOD.example(target) if has_example else module.Options()
    drafter = module.build(options, target)
    engine = engine_for(model, drafter)
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == plain(model, LOOPING, GREEDY)
    assert engine.stats.accepted > 0
    assert engine.stats.rejected > 0
