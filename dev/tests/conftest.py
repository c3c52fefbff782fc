"""The default model, as for the package's own tests, and where the tests of AArch64 find their Python."""

import pytest

from tests.conftest import default_model  # noqa: F401


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--arm", metavar="FOLDER", help="what dev/arm/sysroot.sh made, for -m arm")
