"""Without shared drafts no request is drafted from what another one said."""

from __future__ import annotations

import pytest

from forerun.commands.serve import without_sharing
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams

PROMPT = "Names of rivers, one after the other:"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("auto", "suffix:shared_tokens=0"),
        ("suffix", "suffix:shared_tokens=0"),
        ("none", "none"),
        ("prompt_lookup", "prompt_lookup"),
        ("suffix++lookahead", "suffix:shared_tokens=0++lookahead"),
    ],
)
def test_drafters_that_share_are_replaced(given, kept):
    assert without_sharing(EngineConfig(drafter=given)).drafter == kept


@pytest.mark.parametrize("given", [{"drafter": "recycling"}, {"learn": True}])
def test_what_learns_from_all_requests_is_refused(given):
    with pytest.raises(ConfigError, match="--no-shared-drafts"):
        without_sharing(EngineConfig(**given))


def test_a_request_leaves_nothing_for_the_next_one_to_draft_from(llm):
    drafted = {}
    for drafter in ("suffix", "suffix:shared_tokens=0"):
        own = llm.with_drafter(drafter)
        for turn in range(2):
            request = own.submit(PROMPT, SamplingParams(temperature=0, max_tokens=24))
            request.wait()
            drafted[drafter, turn] = request.runs[0].stats.accepted
    assert drafted["suffix", 1] > drafted["suffix", 0]
    assert drafted["suffix:shared_tokens=0", 1] == drafted["suffix:shared_tokens=0", 0]
