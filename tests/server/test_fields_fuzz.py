"""Every field of every route with odd values, and wrong shapes of what is nested: answers and 400s, never a 500."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from forerun.compat.request_fields import ONLY, RENAMED, STATE
from forerun.llm import LLM
from forerun.server import pull
from forerun.server.api import ollama, ollama_models
from forerun.server.schema import RequestBody
from tests.server.conftest import running, tool
from tests.server.mcp_servers import mcp_server

pytestmark = pytest.mark.slow

SAID = [{"role": "user", "content": "Hi"}]
FEW = {"max_tokens": 1}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi", **FEW},
    "/v1/chat/completions": {"messages": SAID, **FEW},
    "/v1/chat/completions/input_tokens": {"messages": SAID},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": SAID, **FEW},
    "/v1/messages/count_tokens": {"messages": SAID},
    "/v1/embeddings": {"input": "Hi"},
    "/embedding": {"content": "Hi"},
    "/completion": {"prompt": "Hi", "n_predict": 1},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 1},
    "/apply-template": {"messages": SAID},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/api/chat": {"messages": SAID, "stream": False, "options": {"num_predict": 1}},
    "/api/generate": {"prompt": "Hi", "stream": False, "options": {"num_predict": 1}},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/show": {},
    "/api/pull": {"stream": False},
    "/models/unload": {},
    "/mcp-rest/tools/call": {"server_id": "weather", "name": "get_weather"},
}
HIDDEN: dict[str, type[RequestBody]] = {
    "/api/chat": ollama.OllamaChat,
    "/api/generate": ollama.OllamaGenerate,
    "/api/embed": ollama.EmbedRequest,
    "/api/embeddings": ollama.EmbedRequest,
    "/api/show": ollama_models.ShowRequest,
    "/api/pull": pull.PullRequest,
    "/models/unload": ollama_models.UnloadRequest,
}
"""Routes that the document leaves out, with their bodies."""
NEED_NOTHING = {"/api/chat", "/api/generate", "/api/show", "/api/pull", "/models/unload"}
"""Routes that name a model alone, which may be left out where there is one."""
CHATS = {route: "messages" for route in BODIES if "messages" in BODIES[route]}
CHATS |= {"/v1/responses": "input", "/tokenize": "messages"}
DEEP: Any = 1
for _ in range(300):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1.5, -0.0, 1e-9, 1e308, 2**31, 2**53, 2**63, -(2**63) - 1),
    *(10**30, 10**300, 10**400, "", "a", "1", "-1", "none", "\ud800", "\0", "\u4e2d\U0001f600" * 9),
    *([], [[]], [None], [1, "a"], ["a", "a"], [2**40], {}, {"a": 1}, {"": None}, {"1": "a"}),
    *({"type": "json_schema"}, {"type": "function", "function": {}}, [{"type": "text"}], DEEP),
)
"""Odd values for every field."""
LEAVES: tuple[Any, ...] = (
    None,
    0,
    -1,
    10**30,
    True,
    "",
    "x",
    "\ud800",
    [],
    [1],
    {},
    {"a": []},
    DEEP,
)
"""And for what is nested in these."""
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
SHAPES: dict[str, list[Any]] = {
    "messages": [
        {"role": "user", "content": "Hi", "name": "x"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "a", "tool_calls": [CALL], "reasoning_content": "b"},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "a", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "2", "is_error": True}
            ],
        },
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": ""}]},
    ],
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "2"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "content": []},
    ],
    "tools": [
        {**tool("add", a={"type": "integer"}), "strict": True},
        {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True},
        {"name": "add", "description": "a", "input_schema": {"type": "object"}, "strict": True},
    ],
}
"""Entries of lists, each of whose parts is replaced in its turn."""
OBJECTS: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
    "structured_outputs": {"json": {"type": "object", "properties": {"a": {"enum": [1]}}}},
    "tool_choice": {"type": "function", "function": {"name": "add"}},
    "text": {"format": {"type": "json_schema", "schema": {"type": "string"}}},
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "string"}}},
    "reasoning": {"effort": "low", "enabled": True, "max_tokens": 5},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "prediction": {"type": "content", "content": [{"type": "text", "text": "a"}]},
    "speculative": {"drafter": "auto", "max_draft": 1},
    "options": {"temperature": 0, "num_predict": 1, "stop": ["a"]},
    "format": {"type": "object", "properties": {"a": {"enum": [1]}}},
    "documents": [{"text": "a"}],
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": True},
    "input_extra": [{"text": "a", "filename": "b"}],
    "logit_bias": [[1, 2.0], ["a", False]],
    "prompt": [{"prompt_string": "a"}, {"content": [{"type": "text", "text": "a"}]}, [1, "a"]],
}


@pytest.fixture(scope="module")
def url(default_model) -> Iterator[str]:
    load = lambda: LLM(str(default_model), drafter="prompt_lookup", max_model_len=64)  # noqa: E731
    with (
        mcp_server() as (mcp_url, mcp),
        running(
            load, embeddings=True, strict_model_name=False, mcp_server=(f"weather={mcp_url}",)
        ) as (found, _),
    ):
        mcp.streams = False  # two messages fewer for each call
        yield found


def spoilt(value: Any) -> Iterator[Any]:
    """The value with each of its parts replaced or, in an object, left out."""
    parts = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in parts:
        for other in (*LEAVES, *spoilt(part)):
            copied = value.copy()
            copied[key] = other
            yield copied
        if isinstance(value, dict):
            yield {name: one for name, one in value.items() if name != key}


def with_field(route: str, name: str) -> Iterator[dict[str, Any]]:
    """Bodies with odd values of a field, and with wrong shapes of it where it is nested."""
    for value in (*VALUES, *spoilt(OBJECTS.get(name))):
        yield {**BODIES[route], name: value}
    for entry in SHAPES.get(name, ()):
        for value in (entry, *spoilt(entry)):
            body = {**BODIES[route], name: [value, *(SAID if name == CHATS.get(route) else [])]}
            yield body | ({"tool_choice": "required"} if name == "tools" else {})


def fields(url: str, route: str) -> set[str]:
    """The names that a route's document states, and those of other engines."""
    if (body := HIDDEN.get(route)) is not None:
        return {*body.model_fields, *RENAMED, *STATE, *OBJECTS, "tools"}
    document = httpx.get(f"{url}/openapi.json").json()
    content = document["paths"][route]["post"]["requestBody"]["content"]["application/json"]
    name = content["schema"]["$ref"].rpartition("/")[2]
    own = {*document["components"]["schemas"][name]["properties"], CHATS.get(route, "a")}
    return own | {"a", "timings", *RENAMED, *STATE, *ONLY, *OBJECTS, "tools"}


def is_wrong(answer: httpx.Response) -> bool:
    """Tell what no request may be answered with: a failure of ours, in a stream too, or what is not JSON."""
    if answer.headers["content-type"] == "application/json":
        answer.json()
    failed = "server_error" in answer.text or "engine failed" in answer.text
    return failed or answer.status_code not in (200, 400, 404, 501)


@pytest.mark.parametrize("route", BODIES)
def test_no_field_of_a_route_fails_whatever_it_holds(url, route):
    head, counts, wrong = {"content-type": "application/json"}, Counter[int](), []
    with httpx.Client(base_url=url, timeout=60, headers=head) as client:
        for name in sorted(fields(url, route)):
            for body in with_field(route, name):
                text = json.dumps(body)
                answer = client.post(route, content=text)
                counts[answer.status_code] += 1
                if is_wrong(answer):
                    wrong.append(f"{text[:300]} {answer.text[:300]}")
    print(route, dict(counts))
    assert not wrong, "\n".join(wrong[:20])
    assert counts[400] + counts[501] > 100


@pytest.mark.parametrize("route", BODIES)
def test_no_body_fails_whatever_it_is(url, route):
    texts = [
        "",
        "{",
        "[]",
        "1",
        '"a"',
        "null",
        "{}",
        "[" * 5000,
        '{"a":' * 5000,
        "\0",
        '{"a": NaN}',
    ]
    objects = {"{}", *(json.dumps(value) for value in VALUES if isinstance(value, dict))}
    for text in (*texts, *map(json.dumps, VALUES)):
        statuses = {400, 501} | ({200} if route in NEED_NOTHING and text in objects else set())
        head = {"content-type": "application/json"}
        answer = httpx.post(f"{url}{route}", content=text, headers=head, timeout=60)
        assert answer.status_code in statuses, (text[:300], answer.text)
