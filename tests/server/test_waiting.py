"""What only reads waits as what answers does: in a place of the queue, and not for a client that has gone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from forerun.server.service import RENDERED_AT_ONCE
from forerun.text.template_process import TemplateProcess
from tests.server.conftest import post, running, wait_until

SAID = [{"role": "user", "content": "Hi"}]
READS = {
    "/apply-template": {"messages": SAID},
    "/tokenize": {"messages": SAID},
    "/v1/chat/completions/input_tokens": {"messages": SAID},
    "/v1/messages/count_tokens": {"messages": SAID},
}
ANSWERS = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 1},
    "/v1/messages": {"messages": SAID, "max_tokens": 1},
}


@pytest.fixture
def rendered(monkeypatch) -> list[object]:
    """The conversations that were rendered."""
    seen, render = [], TemplateProcess.render

    def spy(self, messages, *given):
        seen.append(messages)
        return render(self, messages, *given)

    monkeypatch.setattr(TemplateProcess, "render", spy)
    return seen


def test_who_has_gone_is_not_rendered(llm, rendered):
    opened = threading.Event()
    with running(lambda: llm) as (url, service), ThreadPoolExecutor(8) as pool:
        for _ in range(RENDERED_AT_ONCE):
            service._renderers.submit(opened.wait, 30)

        def leave(route: str, body: dict) -> None:
            with suppress(httpx.ReadTimeout):
                httpx.post(f"{url}{route}", json=body, timeout=0.5)

        gone = [pool.submit(leave, *one) for one in (READS | ANSWERS).items()]
        wait_until(lambda: service._num_entering == len(gone))
        for one in gone:
            one.result()
        wait_until(lambda: service._num_entering == 0)
        opened.set()
        assert post(url, "/apply-template", READS["/apply-template"])["prompt"]
    assert len(rendered) == 1, "of the one who waited"


def test_what_only_reads_takes_a_place_in_the_queue(llm):
    reads = READS | {"/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [1]}}
    with running(lambda: llm, max_queue=0) as (url, service):
        service._num_entering = llm.config.max_num_seqs
        for route, body in reads.items():
            assert "waiting" in httpx.post(f"{url}{route}", json=body).text
            assert httpx.post(f"{url}{route}", json=body).status_code == 429
        service._num_entering = 0
        for route, body in reads.items():
            post(url, route, body)


def test_a_reranks_template_runs_off_the_event_loop(llm, monkeypatch):
    threads = set()
    names = TemplateProcess.names

    def spy(self):
        threads.add(threading.current_thread().name)
        return names.__get__(self)

    monkeypatch.setattr(TemplateProcess, "names", property(spy))
    with running(lambda: llm) as (url, _):
        post(url, "/v1/rerank", {"query": "a", "documents": ["b", "c"]})
    assert threads
    assert all(name.startswith("chat-template") for name in threads)
