"""The suite turns red when acceptance, rows or masks are broken on purpose, or a controller constant is changed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import CONSTANT_MUTANTS, MUTANTS

ROOT = Path(__file__).parents[2]
CONTRACT = ["tests/lab/contract/test_contract.py", "-x", "-q", "-p", "no:cacheprovider"]
CONTROLLER = [
    *(f"tests/engine/test_{name}.py" for name in ("controller", "draft_length")),
    *("tests/engine/test_recorded_answers.py", "tests/core/test_costs.py", *CONTRACT[1:]),
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
@pytest.mark.parametrize("suite", [CONTRACT, CONTROLLER], ids=["contract", "controller"])
def test_the_suites_pass_unbroken(suite):
    assert run("-m", "pytest", *suite) == 0


@pytest.mark.slow
@pytest.mark.parametrize("mutant", CONSTANT_MUTANTS)
def test_the_controllers_tests_notice(mutant):
    assert run("-m", "tests.mutants", mutant, *CONTROLLER) == TESTS_FAILED
