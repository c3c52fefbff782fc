"""A value that an option cannot have is an error that names the option."""

from __future__ import annotations

import pytest

from forerun.core.errors import ConfigError
from forerun.drafters.base.find import find

WRONG = {
    "prompt_lookup": [
        *({"ngram_min": 0}, {"ngram_min": 65}, {"ngram_max": 0}),
        *({"num_draft": 0}, {"factor": 0.0}),
    ],
    "suffix": [
        *({"max_depth": 0}, {"num_draft": 0}, {"factor": 0}, {"offset": -1}),
        *({"min_token_prob": 0.0}, {"min_token_prob": 1.5}, {"shared_tokens": -1}),
    ],
    "recycling": [
        *({"order": 0}, {"num_draft": 0}, {"min_chance": 0.0}, {"min_chance": float("nan")}),
        *({"table_mb": 0.0}, {"table_mb": float("inf")}, {"max_depth": 0}, {"shared_tokens": -1}),
    ],
    "lookahead": [{"window": -1}, {"ngram": 1}, {"guesses": 0}],
    "mlp_speculator": [{"num_draft": 0}, {"num_steps": 17}, {"min_chance": 2}],
    "draft_model": [
        *({"num_draft": 0}, {"num_steps": 0}, {"min_chance": 1.5}),
        *({"draft_vocab": "0"}, {"draft_vocab": "half"}),
    ],
}
NEEDED = {"mlp_speculator": {"model": "untrained"}, "draft_model": {"model": "tiny"}}
CASES = [(drafter, wrong) for drafter, each in WRONG.items() for wrong in each]


@pytest.mark.parametrize(("drafter", "wrong"), CASES, ids=str)
def test_a_wrong_value_is_refused(drafter: str, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        find(drafter).Options(**NEEDED.get(drafter, {}) | wrong)
