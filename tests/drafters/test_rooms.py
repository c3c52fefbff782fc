"""Methods are rooms: without the file or folder of any one of them, everything else works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import forerun
from forerun.core import registry

SOURCE = Path(forerun.__file__).parent
METHODS = registry.names("drafters")
BEGIN = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in type(each).__module__]
from forerun.cli.main import main
"""
DECODE = """
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.drafting.base import Drafter, Target
from forerun.drafting.spec import DrafterSpec
from forerun.engine.engine import Engine
from forerun.model.random_model import random_model

def answer(drafter):
    engine = Engine(model, model.new_cache(1, 64), drafter, EngineConfig(controller=False))
    run = engine.add([1, 2, 3, 1, 2, 3, 1, 2], SamplingParams(temperature=0, max_tokens=40))
    while engine.has_work:
        engine.step()
    return run.seq.generated, engine.stats.accepted

model = random_model(3, sharpness=3.0)
drafted, accepted = answer(DrafterSpec.of(sys.argv[1]).build(Target(model, None, 1, 64)))
assert accepted > 0
assert drafted == answer(Drafter())[0]
sys.argv = ["forerun", "drafters", "--json"]
main()
"""


@pytest.fixture
def without(tmp_path: Path):
    """Run a script with the package, of which a method was deleted."""

    def run(method: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        drafters = tmp_path / "forerun" / "drafters"
        drafters.mkdir(parents=True)
        for folder, copy in ((SOURCE, drafters.parent), (SOURCE / "drafters", drafters)):
            for each in folder.iterdir():
                if each.name not in ("drafters", "__pycache__", method, f"{method}.py"):
                    (copy / each.name).symlink_to(each)
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.parametrize("method", METHODS)
def test_without_one_method_the_others_are_listed_and_lossless(without, method):
    other = "prompt_lookup" if method == "suffix" else "suffix"
    done = without(method, BEGIN + DECODE, other)
    assert done.returncode == 0, done.stderr
    for each in METHODS:
        assert (f'"name": "{each}"' in done.stdout) is (each != method)


def test_what_needs_a_missing_method_says_so_in_a_line(without):
    asked = ["forerun", "drafters", "draft_model"]
    done = without("draft_model", f"{BEGIN}sys.argv = {asked}; main()")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown drafter 'draft_model'")
    assert done.stderr.count("\n") == 1
