"""A chromium, and a server with room for long answers; without chromium the tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from forerun.llm import LLM
from tests.server.conftest import running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as tool:
        # The machines of tests run as root, where chromium has no sandbox.
        made = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="session")
def long_url(default_model) -> Iterator[str]:
    """A server with room for an answer that no test waits out: it repeats itself, undrafted."""
    with running(lambda: LLM(str(default_model), drafter="none", max_model_len=8192)) as (url, _):
        yield url
