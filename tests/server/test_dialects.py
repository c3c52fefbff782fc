"""The same question in the form of every API: one answer, which is the offline one, whole and streamed.

What a dialect has besides is in its own file; that documents and events have the clients' types in `test_wire.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from forerun.core.params import SamplingParams
from tests.server.conftest import chunks, json_schema, post, tool

SIZE = 32
TEXT = "One two three one two three one"
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Write a list of ten animals. Then write the list again."}
WEATHER = tool("weather", city={"type": "string", "maxLength": 12})
FUNCTION = WEATHER["function"]
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
GREEDY = {"temperature": 0}
Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a client reads of an answer; a stream of `/v1/chat/completions` and the like tells no counts unasked."""

    text: str
    reason: str
    num_prompt: int
    num_new: int
    calls: tuple[tuple[str, Json], ...] = ()


@dataclass(frozen=True)
class Dialect:
    """How one API asks and answers."""

    route: str
    body: Json
    length: str
    """The reason of an answer that is as long as it may be."""
    read: Callable[[Json], Answer]
    join: Callable[[list[Json]], Answer]
    """Read a stream."""
    stop: Callable[[str], Json]
    stopped: str
    form: Json = field(default_factory=dict)
    tools: Json = field(default_factory=dict)
    """A call is required."""
    called: str = ""
    goes_on: Callable[[Json, Json], Json] | None = None
    """The next turn, of a body and its answer: the call and its result."""


def listen(url: str, dialect: Dialect, body: Json) -> Answer:
    """Ask for a stream, and read it."""
    if not dialect.route.startswith("/api/"):
        more = (
            {"stream_options": {"include_usage": True}} if "/completions" in dialect.route else {}
        )
        return dialect.join(chunks(url, dialect.route, body | more))
    answer = httpx.post(f"{url}{dialect.route}", json=body | {"stream": True}, timeout=60)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return dialect.join([json.loads(line) for line in answer.text.splitlines()])


# OpenAI's older APIs


def read_choice(document: Json) -> Answer:
    (choice,), usage = document["choices"], document["usage"]
    message = choice.get("message", {})
    calls = tuple(
        (one["function"]["name"], json.loads(one["function"]["arguments"]))
        for one in message.get("tool_calls") or ()
    )
    text = choice["text"] if "text" in choice else message["content"] or ""
    counts = (usage["prompt_tokens"], usage["completion_tokens"])
    return Answer(text, choice["finish_reason"], *counts, calls)


def join_choices(events: list[Json]) -> Answer:
    *parts, last = events
    choices = [part["choices"][0] for part in parts if part["choices"]]
    deltas = [one.get("delta", one) for one in choices]
    text = "".join(one.get("text") or one.get("content") or "" for one in deltas)
    pieces = [piece["function"] for one in deltas for piece in one.get("tool_calls") or ()]
    arguments = "".join(piece.get("arguments") or "" for piece in pieces)
    calls = ((pieces[0]["name"], json.loads(arguments)),) if pieces else ()
    (reason,) = {one["finish_reason"] for one in choices} - {None}
    usage = last["usage"]
    return Answer(text, reason, usage["prompt_tokens"], usage["completion_tokens"], calls)


def chat_goes_on(body: Json, document: Json) -> Json:
    said = document["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "12 degrees"}
    return {"messages": [*body["messages"], said, result]}


# OpenAI's newer one


def read_response(document: Json) -> Answer:
    usage, texts, calls = document["usage"], [], []
    for item in document["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], json.loads(item["arguments"])))
        else:
            texts += [part["text"] for part in item["content"]]
    reason = (document["incomplete_details"] or {"reason": document["status"]})["reason"]
    counts = (usage["input_tokens"], usage["output_tokens"])
    return Answer("".join(texts), reason, *counts, tuple(calls))


def join_response(events: list[Json]) -> Answer:
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    whole = read_response(events[-1]["response"])
    deltas: dict[str, str] = {}
    for event in events:
        if "delta" in event:
            deltas[event["type"]] = deltas.get(event["type"], "") + event["delta"]
    arguments = deltas.get("response.function_call_arguments.delta")
    calls = tuple((name, json.loads(arguments or "")) for name, _ in whole.calls)
    return replace(whole, text=deltas.get("response.output_text.delta", ""), calls=calls)


def response_goes_on(body: Json, document: Json) -> Json:
    (call,) = document["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "12 degrees"}
    return {"input": [*body["input"], call, result]}


# Anthropic's


def read_message(document: Json) -> Answer:
    usage, blocks = document["usage"], document["content"]
    num_prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = tuple((b["name"], b["input"]) for b in blocks if b["type"] == "tool_use")
    return Answer(text, document["stop_reason"], num_prompt, usage["output_tokens"], calls)


def join_message(events: list[Json]) -> Answer:
    start = next(one["message"]["usage"] for one in events if one["type"] == "message_start")
    end = next(one for one in events if one["type"] == "message_delta")
    blocks = [one["content_block"] for one in events if one["type"] == "content_block_start"]
    deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
    arguments = "".join(one.get("partial_json", "") for one in deltas)
    calls = tuple((b["name"], json.loads(arguments)) for b in blocks if b["type"] == "tool_use")
    text = "".join(one.get("text", "") for one in deltas)
    usage = start | end["usage"]
    num_prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return Answer(text, end["delta"]["stop_reason"], num_prompt, usage["output_tokens"], calls)


def message_goes_on(body: Json, document: Json) -> Json:
    (call,) = document["content"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "12 degrees"}
    turns = [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    return {"messages": [*body["messages"], *turns]}


# llama-server's and Ollama's


def read_native(document: Json) -> Answer:
    counts = (document["tokens_evaluated"], document["tokens_predicted"])
    return Answer(document["content"], document["stop_type"], *counts)


def join_native(events: list[Json]) -> Answer:
    assert [one["stop"] for one in events] == [False] * (len(events) - 1) + [True]
    return replace(read_native(events[-1]), text="".join(one["content"] for one in events))


def read_ollama(document: Json) -> Answer:
    message = document.get("message", {})
    calls = tuple(
        (one["function"]["name"], one["function"]["arguments"])
        for one in message.get("tool_calls", ())
    )
    text = document["response"] if "response" in document else message["content"]
    counts = (document["prompt_eval_count"], document["eval_count"])
    return Answer(text, document["done_reason"], *counts, calls)


def join_ollama(events: list[Json]) -> Answer:
    assert [one["done"] for one in events] == [False] * (len(events) - 1) + [True]
    counts = events[-1]
    parts = [read_ollama(counts | one) for one in events]
    text, calls = "".join(one.text for one in parts), sum((one.calls for one in parts), ())
    return replace(parts[-1], text=text, calls=calls)


def ollama_goes_on(body: Json, document: Json) -> Json:
    result = {"role": "tool", "tool_name": "weather", "content": "12 degrees"}
    return {"messages": [*body["messages"], document["message"], result]}


def options(size: int = SIZE, **more: object) -> Json:
    return {"options": {**GREEDY, "num_predict": size, **more}, "stream": False}


CHATS = [
    Dialect(
        "/v1/chat/completions",
        {"messages": [SYSTEM, USER], "max_tokens": SIZE, **GREEDY},
        "length",
        read_choice,
        join_choices,
        lambda word: {"stop": [word]},
        "stop",
        {"response_format": json_schema(SCHEMA)},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        "tool_calls",
        chat_goes_on,
    ),
    Dialect(
        "/v1/responses",
        {"instructions": "Be brief.", "input": [USER], "max_output_tokens": SIZE, **GREEDY},
        "max_output_tokens",
        read_response,
        join_response,
        lambda word: {"stop": [word]},
        "completed",
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
        {
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": {"type": "function", "name": "weather"},
        },
        "completed",
        response_goes_on,
    ),
    Dialect(
        "/v1/messages",
        {"system": "Be brief.", "messages": [USER], "max_tokens": SIZE, **GREEDY},
        "max_tokens",
        read_message,
        join_message,
        lambda word: {"stop_sequences": [word]},
        "stop_sequence",
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {
            "tools": [{"name": "weather", "input_schema": FUNCTION["parameters"]}],
            "tool_choice": {"type": "tool", "name": "weather"},
        },
        "tool_use",
        message_goes_on,
    ),
    Dialect(
        "/api/chat",
        {"messages": [SYSTEM, USER], **options()},
        "length",
        read_ollama,
        join_ollama,
        lambda word: options(stop=[word]),
        "stop",
        {"format": SCHEMA},
        {
            "tools": [WEATHER],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            **options(120),
        },
        "stop",
        ollama_goes_on,
    ),
    Dialect(
        "/api/generate",
        {"system": "Be brief.", "prompt": USER["content"], **options()},
        "length",
        read_ollama,
        join_ollama,
        lambda word: options(stop=[word]),
        "stop",
        {"format": SCHEMA},
    ),
]
TEXTS = [
    Dialect(
        "/v1/completions",
        {"prompt": TEXT, "max_tokens": SIZE, **GREEDY},
        "length",
        read_choice,
        join_choices,
        lambda word: {"stop": [word]},
        "stop",
        {"guided_json": SCHEMA},
    ),
    Dialect(
        "/completion",
        {"prompt": TEXT, "n_predict": SIZE, **GREEDY},
        "limit",
        read_native,
        join_native,
        lambda word: {"stop": [word]},
        "word",
        {"json_schema": SCHEMA},
    ),
    Dialect(
        "/api/generate",
        {"prompt": TEXT, "raw": True, **options()},
        "length",
        read_ollama,
        join_ollama,
        lambda word: options(stop=[word]),
        "stop",
    ),
]
ALL = [*CHATS, *TEXTS]
OF_ALL = pytest.mark.parametrize("dialect", ALL, ids=lambda one: one.route)
OF_TOOLS = pytest.mark.parametrize(
    "dialect", [one for one in ALL if one.tools], ids=lambda one: one.route
)


@pytest.fixture(scope="module")
def expected(llm):
    """Of a dialect: what the engine says offline, the tokens it read, and the figures."""
    params = SamplingParams(temperature=0, max_tokens=SIZE)
    chat, text = llm.generate([[SYSTEM, USER], TEXT], params)
    return lambda dialect: chat if dialect in CHATS else text


@OF_ALL
def test_an_answer_is_the_offline_one_and_its_drafts_are_accepted_and_rejected(
    url, expected, dialect
):
    offline = expected(dialect)
    (output,) = offline.outputs
    num_prompt = len(offline.prompt_token_ids)
    found = dialect.read(post(url, dialect.route, dialect.body))
    assert found == Answer(output.text, dialect.length, num_prompt, SIZE)
    assert output.stats.drafted > output.stats.accepted > 0


@OF_ALL
def test_a_stream_adds_up_to_the_answer(url, dialect):
    whole = dialect.read(post(url, dialect.route, dialect.body))
    assert listen(url, dialect, dialect.body) == whole


@OF_ALL
def test_a_stop_string_ends_an_answer_and_is_not_in_it(url, expected, dialect):
    (output,) = expected(dialect).outputs
    word = output.text.split()[3]
    body = dialect.body | dialect.stop(word)
    found = dialect.read(post(url, dialect.route, body))
    assert found.text == output.text[: output.text.index(word)]
    assert found.reason == dialect.stopped
    assert found.num_new < SIZE
    assert listen(url, dialect, body) == found


@pytest.mark.parametrize("dialect", [one for one in ALL if one.form], ids=lambda one: one.route)
def test_an_answer_has_the_form_that_is_asked_for(url, dialect):
    pytest.importorskip("llguidance", reason="structured output needs llguidance")
    found = dialect.read(post(url, dialect.route, dialect.body | dialect.form))
    assert isinstance(json.loads(found.text)["ok"], bool)


@OF_TOOLS
def test_a_required_call_is_valid_whole_and_streamed(url, dialect):
    pytest.importorskip("llguidance", reason="required calls need llguidance")
    body = dialect.body | dialect.tools
    found = dialect.read(post(url, dialect.route, body))
    ((name, arguments),) = found.calls
    assert (name, found.text, found.reason) == ("weather", "", dialect.called)
    assert {*arguments} == {"city"}
    assert listen(url, dialect, body) == found


@OF_TOOLS
def test_a_conversation_goes_on_after_a_call(url, dialect):
    pytest.importorskip("llguidance", reason="required calls need llguidance")
    body = dialect.body | dialect.tools
    document = post(url, dialect.route, body)
    later = dialect.body | {"tools": dialect.tools["tools"]} | dialect.goes_on(body, document)
    found = dialect.read(post(url, dialect.route, later))
    assert found.num_prompt > dialect.read(document).num_prompt
    assert found.num_new > 0
