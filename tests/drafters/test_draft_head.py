"""A cut head guesses what the whole one would among the tokens it scores, and changes no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import Draft
from forerun.decoding.processors import LogitsPipeline
from forerun.drafters import draft_model
from forerun.drafters.base import draft_head
from forerun.drafters.base.draft_head import TextTokens, chosen, cut_list, first_tokens, must_have
from forerun.drafters.draft_model import Options
from forerun.drafters.draft_model.network import DraftModel
from forerun.drafters.recycling import shared_replies
from tests.drafters.helpers import GREEDY
from tests.drafters.models import (
    DRAFT_MODEL,
    TARGET,
    VOCAB_SIZE,
    WARM,
    begun,
    drafter_of,
    logits_of,
    seq_of,
    tiny,
)

LISTED = np.array([0, 3, 4, 7])
PENALISED = replace(GREEDY, presence_penalty=1.0, logit_bias={5: 2.0})


def cut(**options: object) -> DraftModel:
    options = {"kv": "auto", **options}
    return draft_model.drafter_of(DRAFT_MODEL, Options(model="tiny", **options), TARGET, LISTED)  # type: ignore[arg-type]


def allowed(tokens: Sequence[int]) -> list[int]:
    return sorted({*LISTED.tolist(), *tokens})


@pytest.mark.parametrize("params", [GREEDY, PENALISED])
def test_it_guesses_the_likeliest_of_its_tokens(params: SamplingParams) -> None:
    """With penalties on all that the request has said."""
    drafter = cut(num_draft=1)
    others = 0
    for first in range(VOCAB_SIZE):
        (seq,) = begun(drafter, seq_of([first, 11, 2], first, params))
        (draft,) = drafter.propose([seq], [8])
        tokens, pipeline = [*seq.tokens], LogitsPipeline(params, seq.tokens)
        for token in draft.tokens:
            generated = tokens[seq.num_prompt :]
            logits = pipeline.adjusted(logits_of(DRAFT_MODEL, tokens), generated)
            ids = allowed(seq.tokens)
            assert token == ids[int(logits[ids].argmax())]
            others += token != int(logits.argmax())
            tokens.append(token)
        drafter.end(seq)
    assert others, "the whole head would have guessed the same"


def test_a_sampled_draft_has_none_but_its_tokens() -> None:
    drafter = cut(num_draft=6, min_chance=0)
    unfiltered = replace(WARM, top_k=0, top_p=1.0)
    seqs = begun(drafter, seq_of([1, 2], 0, unfiltered), seq_of([9], 1, unfiltered))
    for seq, draft in zip(seqs, drafter.propose(seqs, [9, 9]), strict=True):
        assert len(draft) == 6
        assert {*draft.tokens} <= {*allowed(seq.tokens)}


def test_where_none_of_its_tokens_is_allowed_it_guesses_nothing() -> None:
    for params in (GREEDY, WARM):
        banned = replace(params, stop_token_ids=(1, 2, *LISTED.tolist()), min_tokens=9)
        drafter = cut(num_draft=3)
        (seq,) = begun(drafter, seq_of([1, 2], params=banned))
        assert drafter.propose([seq], [8]) == [Draft()]


@pytest.mark.parametrize("params", [GREEDY, WARM])
def test_a_draft_depends_on_its_text_alone(params: SamplingParams) -> None:
    """Not on the texts beside it, nor on when they were read."""
    together = cut(num_draft=4)
    seqs = begun(together, *(seq_of([i, i + 1, 9 - i], i, params) for i in range(3)))
    for _ in range(3):
        drafts = together.propose(seqs, [8] * 3)
        for seq, draft in zip(seqs, drafts, strict=True):
            alone = cut(num_draft=4)
            begun(alone, seq)
            (expected,) = alone.propose([seq], [8])
            assert (draft.tokens, draft.parents) == (expected.tokens, expected.parents)
            seq.tokens.append((seq.tokens[-1] * 5 + 1) % VOCAB_SIZE)


@settings(deadline=None)
@given(st.lists(st.integers(0, VOCAB_SIZE + 3), min_size=1), st.integers(1, 5), st.data())
def test_a_text_has_its_last_unlisted_tokens(tokens: list[int], most: int, data) -> None:
    """However it is read: in one go or piece by piece. What has no row is left out."""
    is_listed = np.zeros(VOCAB_SIZE, bool)
    is_listed[LISTED] = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_head, "MAX_TEXT_TOKENS", most)
        text = TextTokens(DRAFT_MODEL, is_listed)
        for stop in [*sorted(data.draw(st.lists(st.integers(1, len(tokens))))), len(tokens)]:
            text.read(tokens[:stop])
    unlisted = [t for t in tokens if t < VOCAB_SIZE and not is_listed[t]]
    assert text.ids.tolist() == sorted({*unlisted[-most:]})


class Marked:
    """Two bytes, words, and a mark at the end, behind it what no tokenizer knows."""

    vocab_size = VOCAB_SIZE - 1

    def token_bytes(self, token_id: int) -> bytes | None:
        return b"a" if token_id in (4, 6) else b"" if self.is_special(token_id) else b"word"

    def is_special(self, token_id: int) -> bool:
        return token_id == self.vocab_size - 1


def test_a_list_keeps_marks_and_bytes_and_then_the_first() -> None:
    needed = must_have(Marked(), VOCAB_SIZE)
    assert needed == [4, 6, 10]
    assert first_tokens(Marked(), VOCAB_SIZE, 5).tolist() == [0, 1, 4, 6, 10]
    assert chosen([9, 10, 8], needed, 4).tolist() == [4, 6, 9, 10]
    assert chosen([9, 10, 8], needed, 1).tolist() == needed
    assert first_tokens(None, VOCAB_SIZE, 2).tolist() == [0, 1]


def test_a_large_vocabulary_is_cut_unless_it_shall_not_be(monkeypatch) -> None:
    monkeypatch.setattr(draft_head, "LIST_SIZE", 5)
    head = drafter_of().head
    assert head is not None
    assert head.nbytes(2) >= head.nbytes(1) > 0
    assert drafter_of(draft_vocab="full").head is None
    assert drafter_of(tiny(vocab_size=9)).head is None
    assert drafter_of(draft_vocab="3").head is not None


@pytest.mark.parametrize("tokens", [None, LISTED], ids=["all tokens", "cut"])
def test_networks_and_models_take_the_tokens_that_replies_have_most_often(
    tokens, monkeypatch
) -> None:
    monkeypatch.setattr(draft_head, "COUNTED_SIZE", 5)
    ranked = np.array([9, 2, 8, 20, 7])
    monkeypatch.setattr(shared_replies, "frequent_tokens", lambda *given: ranked)
    target = replace(TARGET, vocabulary=Marked(), encode=lambda text: [1])
    assert cut_list("counted", target, tokens).tolist() == [2, 4, 6, 9, 10]
    monkeypatch.setattr(draft_head, "COUNTED_SIZE", 7)
    assert cut_list("counted", target, tokens) is None, "a small vocabulary is not cut"


def test_a_list_larger_than_the_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="draft_vocab=13 is more than the 12 tokens"):
        drafter_of(draft_vocab="13")
