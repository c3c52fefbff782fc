"""A loop over a tiny model, and what plain decoding answers to its prompts."""

from __future__ import annotations

import pytest

from forerun.drafters import suffix
from forerun.drafters.base.contract import Target
from forerun.engine.loop import EngineLoop
from tests.engine.harness import GREEDY, engine_for, plain
from tests.engine.loops import PROMPTS
from tests.tiny import tiny_model


@pytest.fixture
def loop() -> EngineLoop:
    """Drafts, and runs three sequences at once."""
    model = tiny_model(3, sharpness=3.0)
    drafter = suffix.build(suffix.Options(), Target(model, None, 3, 256))
    return EngineLoop(engine_for(model, drafter, max_num_seqs=3))


@pytest.fixture
def answers(loop: EngineLoop) -> list[list[int]]:
    return plain(loop.engine.model, PROMPTS, GREEDY)
