"""Where a prompt parts from an earlier one is said, at a token and in words of its own; instructions are shared."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from forerun import LLM
from forerun.core.config import SHARED
from forerun.model import prompt_cache
from forerun.model.cache.folder import PromptFolder, default_path
from forerun.model.cache.store import PromptStore, finish_writing
from forerun.model.kernels import native
from tests.server.conftest import post, running

pytestmark = pytest.mark.skipif(native.reason() is not None, reason="no native kernels")

RULES = " ".join(f"Rule {i} is kept by all who read rule {i}." for i in range(12))


def told(day: str) -> str:
    return f"{RULES} Today is {day}. {RULES}"


def asked(day: str, words: str = "Who are you?") -> dict[str, object]:
    said = [{"role": "system", "content": told(day)}, {"role": "user", "content": words}]
    return {"model": "tiny", "messages": said, "max_tokens": 2, "temperature": 0}


def test_a_changed_line_is_named_by_its_place_and_words(default_model: Path, caplog) -> None:
    with (
        LLM(str(default_model), drafter="none", max_model_len=1024) as llm,
        running(lambda: llm, log_requests=True) as (url, _),
    ):
        first = post(url, "/v1/chat/completions", asked("Monday"))
        assert "parts_at" not in first["usage"]["prompt_tokens_details"]
        again = post(url, "/v1/chat/completions", asked("Monday"))
        assert "cache_parts_at" not in again["timings"]
        changed = post(url, "/v1/chat/completions", asked("Friday"))
        details, timings = changed["usage"]["prompt_tokens_details"], changed["timings"]
        at = details["parts_at"]
        assert at == timings["cache_parts_at"] == details["cached_tokens"]
        assert at >= len(llm.tokenizer.encode(RULES))
        assert "Today is Friday" in timings["cache_parts_in"]
    logged = [one.getMessage() for one in caplog.records if one.levelno == logging.INFO]
    assert f" cached, parts from an earlier one at {at}), " in " ".join(logged)
    assert "Friday" not in " ".join(logged)


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_instructions_are_shared_on_every_route(
    default_model: Path, route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_cache, "SHARED_LEAST", 0)
    monkeypatch.setattr(PromptStore, "_is_slow", lambda self, nbytes, block_s: False)
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    with (
        LLM(str(default_model), drafter="none", max_model_len=1024, prompt_cache=SHARED) as llm,
        running(lambda: llm) as (url, _),
    ):
        for words in ("Who are you? I am Ada. " * 12, "Name a tree by the sea. " * 12):
            if route == "/v1/responses":
                body = {"instructions": told("Monday"), "input": words, "max_output_tokens": 16}
            elif route == "/v1/messages":
                said = [{"role": "user", "content": words}]
                body = {"system": told("Monday"), "messages": said, "max_tokens": 2}
            else:
                body = asked("Monday", words)
            post(url, route, {"model": "tiny"} | body)
        finish_writing()
    (kept,) = PromptFolder(default_path(), 1 << 30).models()
    num_told = len(llm_tokens(default_model, told("Monday")))
    assert num_told // 64 <= kept.blocks <= (num_told + 12) // 64


def llm_tokens(model: Path, text: str) -> list[int]:
    with LLM(str(model), drafter="none", max_model_len=1024) as llm:
        return llm.tokenizer.encode(text, bos=False)
