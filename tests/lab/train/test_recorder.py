"""States that are kept while answers are made are those that a reader computes, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forerun import LLM
from forerun.core.params import SamplingParams
from forerun.core.types import FinishReason, Seq, TaskPrompt
from forerun.lab.train import answers, replies, session
from forerun.lab.train.replies import Reply
from forerun.lab.train.states import KEYS, StateReader, StateRecorder
from tests.tiny import tiny_model

ASKED = ("Count from one to nine.", "Name a colour.", "Repeat: a b c a b c a b c.", "Hello!")


def test_what_a_served_model_computed_is_not_read_again(
    default_model, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(answers, "MAX_TOKENS", 24)
    llm = LLM(default_model, drafter="mlp_speculator++recycling", max_model_len=256, max_num_seqs=3)
    prompts = [TaskPrompt(f"p{i}", "chat", (text,)) for i, text in enumerate(ASKED)]
    path = tmp_path / "a.jsonl"
    with session.states_kept(llm, path, 1.0):
        store = answers.fill(llm, prompts, path, 150)
    assert llm.engine.watch is None
    stats = llm.engine.stats
    assert 0 < stats.accepted < stats.drafted
    kept = session.state_reader(llm, path, 1.0)
    fresh = StateReader(
        llm.model, (), all_rows=False, max_len=256, folder=tmp_path / "none", max_nbytes=0
    )
    texts = replies.of_store(store)
    assert len(texts) >= len(ASKED)
    for text in texts:
        assert kept.is_kept(text)
        ours, theirs = kept(text), fresh(text)
        assert len(ours.last) == text.num_learned
        for name in KEYS:
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert (kept.num_computed, fresh.num_computed > 0) == (0, True)


@pytest.mark.parametrize("missing", [None, 0, 1])
def test_an_answer_that_was_not_seen_whole_is_not_kept(missing, tmp_path) -> None:
    model = tiny_model()
    read = StateReader(model, (), all_rows=False, max_len=64, folder=tmp_path, max_nbytes=1 << 20)
    recorder = StateRecorder(read)
    text = Reply("a/0", "a", tuple(range(12)), 6)
    rows = np.random.default_rng(0).standard_normal((12, 32)).astype(np.float32)
    seq = Seq(3, [*text.tokens[:6]], SamplingParams(), 0)
    parts = [(0, rows[:6]), (6, rows[6:9]), (8, rows[8:11])]  # the second pass came twice
    for index, (base, part) in enumerate(parts):
        if index != missing:
            recorder.watch(seq, base, part)
    seq.tokens += text.tokens[6:]
    recorder.write_ended()
    assert not read.is_kept(text), "it goes on"
    seq.finish_reason = FinishReason.LENGTH
    recorder.write_ended()
    assert read.is_kept(text) is (missing is None)
    if missing is None:
        assert torch.equal(read(text).last, torch.from_numpy(rows[5:11]).half())
    recorder.write_ended()  # it is forgotten


def test_files_of_states_keep_their_keys() -> None:
    """So that states of earlier versions are found; fields may have other names."""
    assert [*KEYS.values()] == ["last", "taps", "log_normaliser", "best"]
