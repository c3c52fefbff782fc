"""An engine thread that an error ends: no request waits for it, and health checks see it."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from forerun.llm import LLM
from forerun.server.async_request import ProgressReader
from forerun.server.worker import Worker
from tests.server.conftest import running, wait_until

LONG = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


class Fault:
    """Breaks a method of the engine thread from the moment it is `on`."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.on = threading.Event()
        method = getattr(owner, name)

        def broken(*args, **kwargs):
            if self.on.is_set():
                raise RuntimeError("a fault")
            return method(*args, **kwargs)

        patch.setattr(owner, name, broken)


@pytest.mark.parametrize(("owner", "name"), [(Worker, "_deliveries"), (ProgressReader, "read")])
def test_all_requests_end_and_health_says_so(default_model, monkeypatch, caplog, owner, name):
    fault = Fault(monkeypatch, owner, name)
    llm = LLM(str(default_model), drafter="none", max_model_len=512, max_num_seqs=2)
    with running(lambda: llm) as (url, service), ThreadPoolExecutor(4) as pool:

        def asked(**more: object) -> httpx.Response:
            return httpx.post(f"{url}/v1/completions", json=LONG | more, timeout=20)

        assert httpx.head(f"{url}/health").status_code == 200
        assert (
            'engine_running{engine="0",model_name="tiny"} 1.0' in httpx.get(f"{url}/metrics").text
        )
        waiting = [pool.submit(asked) for _ in range(3)]
        waiting.append(pool.submit(asked, stream=True, return_progress=True))
        wait_until(lambda: service.num_running == 4)
        with caplog.at_level(logging.CRITICAL, "forerun"):
            fault.on.set()
            late = asked(stream=True, return_progress=True)
        assert late.status_code in (200, 500)  # its stream may have begun before the fault
        assert "engine failed" in late.text
        *answers, stream = (one.result() for one in waiting)
        assert [one.status_code for one in answers] == [500] * 3
        assert '"error"' in stream.text
        assert service.num_running == 0
        for method in ("GET", "HEAD"):
            assert httpx.request(method, f"{url}/health").status_code == 500
        assert "the engine of tiny has failed" in httpx.get(f"{url}/v1/health").text
        assert (
            'engine_running{engine="0",model_name="tiny"} 0.0' in httpx.get(f"{url}/metrics").text
        )
        (listed,) = httpx.get(f"{url}/v1/models").json()["data"]
        assert listed["status"] == {"value": "failed"}
        start_s = time.monotonic()
        assert asked().status_code == 500
        assert time.monotonic() - start_s < 5
