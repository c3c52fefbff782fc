"""Who waits: texts that are read for vectors are behind what is answered, and a request may say its own priority."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from forerun.llm import LLM
from tests.server.conftest import post, running, wait_until

SAID = [{"role": "user", "content": "Hi"}]
NUM_TEXTS = 40


@pytest.fixture(scope="module")
def llm(default_model) -> LLM:
    sizes = {"max_model_len": 512, "max_num_seqs": 2, "prefill_chunk": 32}
    return LLM(str(default_model), drafter="none", **sizes)


@pytest.fixture(scope="module")
def served(llm):
    with running(lambda: llm, embeddings=True) as made:
        yield made


@pytest.mark.parametrize(
    ("route", "body", "priority"),
    [
        ("/v1/chat/completions", {"messages": SAID}, 0),
        ("/v1/chat/completions", {"messages": SAID, "priority": -3}, -3),
        ("/v1/responses", {"input": "Hi", "priority": 4}, 4),
        ("/v1/messages", {"messages": SAID, "priority": 5}, 5),
        ("/api/chat", {"messages": SAID, "stream": False, "options": {"priority": 6}}, 6),
        ("/v1/completions", {"prompt": "Hi"}, 0),
        ("/v1/completions", {"prompt": ["Hi", "you"]}, 1),
        ("/v1/completions", {"prompt": ["Hi", "you"], "priority": 0}, 0),
        ("/completion", {"prompt": ["Hi", "you"]}, 1),
        ("/v1/embeddings", {"input": "Hi"}, 1),
        ("/v1/embeddings", {"input": "Hi", "priority": -1}, -1),
        ("/v1/rerank", {"query": "Hi", "documents": ["a"]}, 1),
        ("/v1/rerank", {"query": "Hi", "documents": ["a"], "priority": 2}, 2),
    ],
)
def test_a_request_has_its_own_priority_or_that_of_its_kind(
    served, monkeypatch, route, body, priority
):
    url, service = served
    seen, submit = [], service.worker.submit

    def spied(prompts, params, *given, **named):
        seen.append(params.priority)
        return submit(prompts, params, *given, **named)

    monkeypatch.setattr(service.worker, "submit", spied)
    post(url, route, {"max_tokens": 1} | body if "rerank" not in route else body)
    assert set(seen) == {priority}


def test_a_priority_that_is_none_is_refused(served):
    url, _ = served
    for wrong in (True, "high", 1.5, 10**30):
        assert "priority" in str(
            post(url, "/v1/completions", {"prompt": "a", "priority": wrong}, status=400)
        )


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/embeddings", lambda texts: {"input": texts}),
        ("/v1/rerank", lambda texts: {"query": "fox", "documents": texts}),
        ("/v1/completions", lambda texts: {"prompt": texts, "max_tokens": 1}),
    ],
)
def test_many_texts_do_not_hold_a_chat(llm, served, monkeypatch, route, body):
    """Counted in steps: how many pass between a chat and its end while forty texts wait."""
    url, _ = served
    step, steps, ends = llm.engine.step, [0], {}

    def slowed():
        time.sleep(0.002)
        steps[0] += 1
        return step()

    monkeypatch.setattr(llm.engine, "step", slowed)
    texts = [f"{i}: the quick brown fox jumps over the lazy dog again" for i in range(NUM_TEXTS)]
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(post, url, route, body(texts))
        wait_until(lambda: len(llm.engine.scheduler.waiting) > NUM_TEXTS // 2)
        begun = steps[0]
        post(url, "/v1/chat/completions", {"messages": SAID, "max_tokens": 3, "temperature": 0})
        ends["chat"], is_before = steps[0] - begun, not batch.done()
        batch.result()
    assert is_before
    assert ends["chat"] < (steps[0] - begun) / 2
    assert ends["chat"] <= 20
