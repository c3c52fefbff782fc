"""A minute of random programs; before a release, 20: `python -m tests.engine.fuzz`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.engine.fuzz import fuzz

pytest.importorskip("llguidance", reason="some requests have a form")
MINUTES = 1.0


@pytest.mark.slow
def test_random_programs_say_what_plain_decoding_says(default_model: Path) -> None:
    seed = random.SystemRandom().randrange(
        10**6
    )  # another minute each time; a failure names its seed
    seen = fuzz(str(default_model), MINUTES, seed)
    assert seen["accepted"] > 0
    assert seen["rejected"] > 0
    assert seen["drafted"] == seen["accepted"] + seen["rejected"]
