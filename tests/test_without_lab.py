"""The engine needs no laboratory: a copy of the package without `forerun.lab` imports, lists and answers.

`make test` runs the engine's tests with `--without-lab`, which hides it from them too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forerun import _native

ROOT = Path(__file__).parents[1] / "src" / "forerun"
START = """
import importlib, importlib.util, pkgutil, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]  # no editable installation
sys.path.insert(0, sys.argv.pop(1))
"""
IMPORT_ALL = """
import forerun
for module in pkgutil.walk_packages(forerun.__path__, "forerun."):
    needs = {"forerun.server.ray.": "ray", "forerun.gpu.": "triton"}
    missing = any(module.name.startswith(n) and not importlib.util.find_spec(needs[n]) for n in needs)
    if not (module.name.endswith("__main__") or missing):
        importlib.import_module(module.name)
print(forerun.__file__)
"""
MAIN = """
from forerun.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def engine_house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT, folder / "forerun", ignore=shutil.ignore_patterns("lab", "__pycache__"))
    shutil.copy(_native.__file__, folder / "forerun")
    return folder


@pytest.fixture
def run(engine_house: Path):
    def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", START + script, engine_house, *arguments]
        return subprocess.run(
            [*map(str, command)], capture_output=True, text=True, check=False, timeout=120
        )

    return run


def test_every_module_imports(run, engine_house):
    ended = run(IMPORT_ALL)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(str(engine_house))


def test_its_commands_are_listed_and_those_of_the_laboratory_are_unknown(run):
    ended = run(MAIN, "--help")
    assert ended.returncode == 0, ended.stderr
    words = set(ended.stdout.split())
    assert words >= {"generate", "chat", "serve", "plan", "verify", "drafters"}
    assert not words & {"bench", "eval", "train", "quantize", "tune", "check-drafter"}
    ended = run(MAIN, "bench")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "'bench'" in ended.stderr


def test_it_answers_a_prompt(run, tiny_gguf):
    short = ("-n", 4, "-c", 64, "--temp", 0, "-d", "suffix", "--json")
    ended = run(MAIN, "generate", "a b a b", "--raw", "-m", tiny_gguf, *short)
    assert ended.returncode == 0, ended.stderr
    assert len(json.loads(ended.stdout)["token_ids"]) == 4
