"""What agents, editors and clients send is answered: 200, a stream as they read it, and the meaning is kept.

Those of agents were recorded by `dev/suites/client_requests.py`, which cuts texts. A template writes their beginnings,
so that a small context holds them. Those of editors have the fields that llama.vim's, llama.vscode's, Tabby's and
SillyTavern's sources send (of the commits that are named, with their first settings), litellm's were recorded; texts
are our own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from forerun.core.params import SamplingParams
from forerun.server.config import MAX_TOKENS
from forerun.text.fill_in import FillIn
from tests.server.conftest import running
from tests.server.test_reasoning import with_template
from tests.server.test_wire import EVENTS, WHOLE
from tests.server.wire import faults

REQUESTS = json.loads(
    (Path(__file__).parent / "fixtures" / "clients.json").read_text(encoding="utf-8")
)
EDITORS = json.loads(
    (Path(__file__).parent / "fixtures" / "editors.json").read_text(encoding="utf-8")
)
MOST = 8
"""Tokens of an answer here."""
SHORT = (
    "{% for m in messages %}{{ m.role }}: {{ (m.content or '')[:20] }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments.keys() | join }}{% endfor %}\n"
    "{% endfor %}{% for t in tools or [] %}{{ t.function.name }}{{ t.function.parameters | length }} {% endfor %}"
)


@contextmanager
def few_tokens(llm, **settings: object) -> Iterator[tuple[str, list[SamplingParams]]]:
    """A server whose answers are short, and the parameters that its engine was asked for."""
    with running(lambda: llm, strict_model_name=False, **settings) as (url, service):
        submit, asked = service.worker.submit, list[SamplingParams]()

        def fewer(prompts, params, *given, **named):
            asked.append(copy.copy(params))
            most = params.max_tokens
            params.max_tokens = MOST if most is None else min(most, MOST)
            return submit(prompts, params, *given, **named)

        service.worker.submit = fewer
        yield url, asked


@pytest.fixture(scope="module")
def recorded(llm) -> Iterator[str]:
    with few_tokens(with_template(llm, SHORT)) as (url, _):
        yield url


@pytest.fixture(scope="module")
def editors(llm) -> Iterator[tuple[str, list[SamplingParams]]]:
    """One that fills in, has vectors, and a template that reads tools."""
    own = with_template(llm, SHORT)
    own.tokenizer.__dict__["fill_in"] = FillIn(prefix=4, suffix=5, middle=6, file=7, repo=8)
    with few_tokens(own, embeddings=True, strict_requests=True) as found:
        yield found


@pytest.mark.parametrize("one", EDITORS, ids=lambda one: one["client"].replace(" ", "-"))
def test_what_an_editor_or_a_proxy_asks_is_what_the_engine_does(
    editors: tuple[str, list[SamplingParams]], one: Mapping[str, Any]
) -> None:
    url, asked = editors
    asked.clear()
    head = {} if one["type"] is None else {"content-type": one["type"]}
    body = one["body"]
    answer = httpx.post(f"{url}{one['path']}", content=json.dumps(body), headers=head, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "did you mean" not in answer.headers.get("x-forerun-ignored", "")
    text = said(one["path"], body, answer)
    if "embed" in one["path"] or one["path"] == "/api/show":
        return
    (params,) = asked
    meant = {name: as_list(getattr(params, name)) for name in one["meant"]}
    if meant.get("max_tokens") == MAX_TOKENS:  # the client does not bound it
        meant["max_tokens"] = None
    assert meant == one["meant"]
    if "format" in body or "response_format" in body:
        assert params.structured_outputs is not None
    elif params.max_tokens != 0 and not params.stop:
        assert text


def as_list(value: object) -> object:
    return [*value] if isinstance(value, tuple) else value


def said(path: str, body: Mapping[str, Any], answer: httpx.Response) -> str:
    """The text of an answer, as the client reads it."""
    if path == "/api/show":
        return answer.json()["model_info"]["general.architecture"]
    if "embed" in path:
        assert answer.json()
        return ""
    if path.startswith("/api/"):
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [one["done"] for one in lines[-1:]] == [True]
        parts = [
            one["message"] if "message" in one else {"content": one["response"]} for one in lines
        ]
        return "".join(one["content"] or one.get("thinking", "") for one in parts) or str(parts)
    if not body.get("stream"):
        found = answer.json()
        every = found if isinstance(found, list) else [found]
        assert len(every) == body.get("n_cmpl", 1)
        choices = [choice for one in every for choice in one.get("choices", [one])]
        return "".join(
            str(one.get("content", one.get("text", one.get("message")))) for one in choices
        )
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    told = [json.loads(event) for event in events if event != "[DONE]"]
    if path == "/completion":
        assert told[-1]["stop"]
        return "".join(one["content"] for one in told)
    assert events[-1] == "[DONE]"
    choices = [choice for one in told for choice in one["choices"]]
    assert any(one["finish_reason"] for one in choices)
    return "".join(one["text"] if "text" in one else str(one["delta"]) for one in choices)


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
