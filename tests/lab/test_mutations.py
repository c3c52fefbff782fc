"""The suite turns red when acceptance, rows or masks are broken on purpose, or a controller constant is changed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import CONSTANT_MUTANTS, MUTANTS

ROOT = Path(__file__).parents[2]
CONTRACT = ["tests/lab/contract/test_contract.py", "-x", "-q", "-p", "no:cacheprovider"]
CONTROLLER = [
    *(
        f"tests/engine/test_{name}.py"
        for name in ("controller", "policy", "prior", "recorded_answers")
    ),
    *(
        "tests/core/test_costs.py",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
    ),
]
TESTS_FAILED = 1


def run(*arguments: str) -> int:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, check=False, timeout=900
    ).returncode


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_contract_suite_notices(mutant):
    assert run("-m", "tests.mutants", mutant, *CONTRACT) == TESTS_FAILED


@pytest.mark.slow
def test_the_contract_suite_passes_unbroken():
    assert run("-m", "pytest", *CONTRACT) == 0


@pytest.mark.slow
@pytest.mark.parametrize("mutant", CONSTANT_MUTANTS)
def test_the_controllers_tests_notice(mutant):
    assert run("-m", "tests.mutants", mutant, *CONTROLLER) == TESTS_FAILED
