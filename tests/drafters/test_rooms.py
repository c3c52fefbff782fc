"""Methods are rooms: without the file or folder of any one of them, everything else works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import forerun
from forerun import _native
from forerun.core import registry

SOURCE = Path(forerun.__file__).parent
METHODS = registry.names("drafters")
EACH_APART = """
import json, os, sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in type(each).__module__]
import numpy, safetensors, tokenizers, click

for folder, script, argument in json.loads(sys.argv[1]):
    if not os.fork():
        sys.path.insert(0, folder)
        sys.argv[1:] = [argument]
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY), number)
        exec(script)
        sys.exit(0)
    with open(f"{folder}/code", "w") as code:
        code.write(str(os.waitstatus_to_exitcode(os.wait()[1])))
"""
"""Runs scripts in children of one process, which has imported the libraries."""
DECODE = """
from forerun.cli.main import main
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.drafters.base.contract import Drafter, Target
from forerun.drafters.base.spec import DrafterSpec
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


ASK = """
from forerun.cli.main import main

sys.argv[1:] = ["drafters", *sys.argv[1:]]
main()
"""


class Ended(NamedTuple):
    """How a script ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Ended]:
    """What scripts say, by the method that was deleted from the package and the script."""
    jobs = {(each, DECODE): "recycling" if each == "suffix" else "suffix" for each in METHODS} | {
        ("draft_model", ASK): "draft_model"
    }
    folders = {job: package_without(job[0], tmp_path_factory.mktemp(job[0])) for job in jobs}
    work = [(str(folders[job]), job[1], argument) for job, argument in jobs.items()]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPATH", None)
    subprocess.run(
        [sys.executable, "-c", EACH_APART, json.dumps(work)], env=environment, check=True
    )
    return {
        job: Ended(
            int((at / "code").read_text()), (at / "out").read_text(), (at / "err").read_text()
        )
        for job, at in folders.items()
    }


def package_without(method: str, folder: Path) -> Path:
    """Make a folder whose package `forerun` lacks a method."""
    drafters = folder / "forerun" / "drafters"
    drafters.mkdir(parents=True)
    for source, copy in ((SOURCE, drafters.parent), (SOURCE / "drafters", drafters)):
        for each in source.iterdir():
            if each.name not in ("drafters", "__pycache__", method, f"{method}.py"):
                (copy / each.name).symlink_to(each)
    extension = Path(_native.__file__)
    if not (copied := folder / "forerun" / extension.name).exists():
        copied.symlink_to(extension)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_without_one_method_the_others_are_listed_and_lossless(without, method):
    done = without[method, DECODE]
    assert done.code == 0, done.err
    for each in METHODS:
        assert (f'"name": "{each}"' in done.out) is (each != method)


def test_what_needs_a_missing_method_says_so_in_a_line(without):
    done = without["draft_model", ASK]
    assert done.code == 2
    assert done.err.startswith("error: unknown drafter 'draft_model'")
    assert done.err.count("\n") == 1
