"""Instructions with which two conversations begin are kept on disk, and no user's words are."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun import LLM, SamplingParams
from forerun.core.config import SHARED
from forerun.model import prompt_cache
from forerun.model.cache.blocks import BLOCK_ROWS
from forerun.model.cache.folder import PromptFolder, default_path
from forerun.model.cache.store import PromptStore, finish_writing
from forerun.model.kernels import native
from forerun.text.prompt import encode_chat

pytestmark = pytest.mark.skipif(native.reason() is not None, reason="no native kernels")

SYSTEM = " ".join(
    f"Rule {i}: answer in {i} short words, and never mention rule {i}." for i in range(12)
)
ANSWER = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture(autouse=True)
def small_models_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prompt_cache, "SHARED_LEAST", 0)
    monkeypatch.setattr(PromptStore, "_is_slow", lambda self, nbytes, block_s: False)
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))


def opened(model: Path) -> LLM:
    return LLM(str(model), drafter="none", max_model_len=2048, prompt_cache=SHARED)


def said(words: str, system: str = SYSTEM) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": words}]


def ask(llm: LLM, *messages: list[dict[str, str]]) -> list[int]:
    """Answer one conversation after the other; the tokens of each that were not read."""
    found = [llm.chat(one, ANSWER)[0].num_cached_tokens for one in messages]
    finish_writing()
    return found


def num_blocks() -> int:
    return sum(model.blocks for model in PromptFolder(default_path(), 1 << 30).models())


def num_told(llm: LLM, words: str) -> int:
    return encode_chat(said(words), llm.tokenizer).num_instructions


def test_two_conversations_keep_what_they_share(default_model: Path) -> None:
    with opened(default_model) as llm:
        told = num_told(llm, "Who are you?")
        assert 3 * BLOCK_ROWS < told < len(llm.tokenizer.encode(SYSTEM)) + 16
        ask(llm, said("Who are you?"))
        assert num_blocks() == 0
        ask(
            llm,
            [*said("Who are you?"), {"role": "assistant", "content": "I am"}, *said("Go on")[1:]],
        )
        ask(llm, said("Name a tree. " * 60))
        assert num_blocks() == told // BLOCK_ROWS
    with opened(default_model) as llm:
        assert ask(llm, said("Name a tree. " * 60)) == [told // BLOCK_ROWS * BLOCK_ROWS]


def test_the_same_question_twice_keeps_no_word_of_it(default_model: Path) -> None:
    with opened(default_model) as llm:
        words = "My name is Ada and I live in a lighthouse. " * 20
        told = num_told(llm, words)
        for seed in range(3):
            params = SamplingParams(temperature=1.5, seed=seed, max_tokens=80, ignore_eos=True)
            llm.chat(said(words), params)
        finish_writing()
        assert num_blocks() == told // BLOCK_ROWS


def test_a_beginning_that_another_process_has_met_is_kept(default_model: Path) -> None:
    for expected in (0, 1, 1):
        with opened(default_model) as llm:
            ask(llm, said("Who are you?"))
            assert (num_blocks() > 0) == expected
            told = num_told(llm, "Who are you?")
    with opened(default_model) as llm:
        assert ask(llm, said("Name a tree")) == [told // BLOCK_ROWS * BLOCK_ROWS]


def test_words_that_stand_in_the_instructions_too_count_as_the_users(default_model: Path) -> None:
    with opened(default_model) as llm:
        assert num_told(llm, "answer in 6 short words") < num_told(llm, "Who are you?")
        assert num_told(llm, "Rule 0") == 0
        alone = [{"role": "user", "content": "Who are you? " * 80}]
        assert encode_chat(alone, llm.tokenizer).num_instructions == 0


def test_a_small_model_keeps_nothing(default_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with opened(default_model) as llm:
        assert llm.engine.cache.disk is None
