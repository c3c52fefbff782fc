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
SCRIPT = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in type(each).__module__]
from forerun.cli.main import main
from forerun.lab.contract import contract
from forerun.lab.contract.candidate import Candidate
from forerun.lab.train import export, learners
contract.check_greedy(Candidate.of(sys.argv[1]))
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
    done = without(method, SCRIPT, other)
    assert done.returncode == 0, done.stderr
    for each in METHODS:
        assert (f'"name": "{each}"' in done.stdout) is (each != method)


def test_what_needs_a_missing_method_says_so_in_a_line(without, tmp_path):
    script = (
        SCRIPT[: SCRIPT.index("from forerun.cli")]
        + """
from forerun.cli.main import main
sys.argv = ["forerun", *sys.argv[1:]]
main()
"""
    )
    done = without(
        "draft_model", script, "generate", "hi", "-m", "none.gguf", "-d", "draft_model:model=a"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown drafter")
    assert done.stderr.count("\n") == 1
