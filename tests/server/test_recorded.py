"""What agents and clients send is answered: 200, and a stream as they read it.

Recorded by `dev/suites/client_requests.py`, which cuts texts. A template writes their beginnings, so that a small
context holds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import running
from tests.server.test_reasoning import with_template
from tests.server.test_wire import EVENTS, WHOLE
from tests.server.wire import faults

REQUESTS = json.loads(
    (Path(__file__).parent / "fixtures" / "clients.json").read_text(encoding="utf-8")
)
SHORT = (
    "{% for m in messages %}{{ m.role }}: {{ (m.content or '')[:20] }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments.keys() | join }}{% endfor %}\n"
    "{% endfor %}{% for t in tools or [] %}{{ t.function.name }}{{ t.function.parameters | length }} {% endfor %}"
)


@pytest.fixture(scope="module")
def recorded(llm) -> Iterator[str]:
    with running(lambda: with_template(llm, SHORT), strict_model_name=False) as (url, service):
        submit = service.worker.submit

        def few_tokens(prompts, params, *given, **named):
            params.max_tokens = min(params.max_tokens or 8, 8)
            return submit(prompts, params, *given, **named)

        service.worker.submit = few_tokens
        yield url


@pytest.mark.parametrize("one", REQUESTS, ids=lambda one: f"{one['client']}-{one['path'][4:]}")
def test_a_recorded_request_is_answered(recorded: str, one: Mapping[str, Any]) -> None:
    route, body = one["path"].partition("?")[0], one["body"]
    answer = httpx.post(f"{recorded}{one['path']}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        assert not faults(answer.json(), WHOLE[route])
        return
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    told = [json.loads(event) for event in events if event != "[DONE]"]
    assert not [fault for event in told for fault in faults(event, EVENTS[route])]
    last = told[-1].get("type", "chat.completion.chunk")
    assert last in (
        "chat.completion.chunk",
        "response.completed",
        "response.incomplete",
        "message_stop",
    )
