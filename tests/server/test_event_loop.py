"""The law of the event loop: no body within the limits keeps its thread busy for a tenth of a second at a stretch.

What is measured is the thread's own processor time between two turns of the loop, which a loaded machine does not
lengthen.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.llm import LLM
from forerun.server.app import DIALECTS
from forerun.server.bodies import JsonRoute
from tests.decoding.test_calls import FAMILIES, TEMPLATE
from tests.server.conftest import running, tool
from tests.server.test_fields_fuzz import BODIES, CHATS

pytest.importorskip("llguidance", reason="calls that are required have a grammar")
pytest.importorskip("torch", reason="Hugging Face's, which makes the model")

MOST_S = 0.1
"""Of the event loop's own processor time, between two turns."""
Document = dict[str, Any]
SAID = [{"role": "user", "content": "Hi"}]
TEXT = "The quick brown fox jumps over the lazy dog, 123 times. "


@dataclass
class Turns:
    """The longest turn of all event loops since it was last asked."""

    most_s: float = 0.0
    what: str = ""

    def take(self) -> tuple[float, str]:
        """Return it, and what ran in it, and begin anew."""
        found, self.most_s, self.what = (self.most_s, self.what), 0.0, ""
        return found


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    found, run = Turns(), asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        start_s = time.thread_time()
        run(handle)
        seconds = time.thread_time() - start_s
        if seconds > found.most_s:
            found.most_s, found.what = seconds, repr(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed)
        yield found


@pytest.fixture(scope="module")
def url(turns: Turns, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a model of one layer whose calls are tags and whose vectors are wide."""
    from tests.model.test_lying_files import honest

    path = tmp_path_factory.mktemp("wide") / "model.gguf"
    sizes = {"num_hidden_layers": 1, "max_position_embeddings": 4096}
    path.write_bytes(honest("llama", hidden_size=512, **sizes).to_bytes())
    llm = LLM(str(path), max_model_len=2048, max_num_seqs=64, drafter="none", threads=1)
    llm.tokenizer.use_chat_template(TEMPLATE % FAMILIES["qwen coder"])
    with running(lambda: llm, embeddings=True, allow_pull=True) as (found, _):
        for route, body in BODIES.items():  # what is imported, compiled and rendered first
            httpx.post(found + route, json=body, timeout=60)
        yield found
    llm.close()


def ask(url: str, route: str, body: Document) -> int:
    """The status of an answer, which is read to its end."""
    head = {"content-type": "application/json"}
    return httpx.post(url + route, content=json.dumps(body), headers=head, timeout=100).status_code


def circle(count: int) -> Document:
    """A schema with a parameter of so many references to itself."""
    references = [{"$ref": "#/properties/x"}] * count
    return {"type": "object", "properties": {"x": {"anyOf": references}}, "required": ["x"]}


def ladder(rungs: int, width: int) -> Document:
    """A schema whose definitions each refer to the next one so many times."""
    rung = lambda i: {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * width}  # noqa: E731
    definitions: Document = {f"d{i}": rung(i) for i in range(rungs)}
    definitions[f"d{rungs}"] = {"type": "integer"}
    names = {"x": {"$ref": "#/$defs/d0"}}
    return {"type": "object", "properties": names, "required": ["x"], "$defs": definitions}


def named(schema: object, name: str = "f") -> Document:
    """A tool whose arguments are of a schema."""
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def tools_of(count: int, size: int) -> list[Document]:
    """So many tools of so many texts."""
    return [
        tool(f"f{i}", **{f"p{j}": {"type": "string"} for j in range(size)}) for i in range(count)
    ]


def several(count: int, **more: object) -> Document:
    """A chat that must call one of so many functions."""
    return {"tools": tools_of(count, 10), "tool_choice": "required", **more}


def allowed(count: int) -> Document:
    names = [{"type": "function", "function": {"name": "f0"}}] * count
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}}
    return {"tools": tools_of(900, 1), "tool_choice": choice}


def turn(role: str, content: object, **more: object) -> Document:
    return {"role": role, "content": content, **more}


CALL = {"id": "c", "type": "function", "function": {"name": "f0", "arguments": '{"x": 1}'}}
OF_ALL: dict[str, Callable[[], Document]] = {
    "fields": lambda: {f"x{i}": 1 for i in range(99_000)},
    "a few fields": lambda: {f"x{'y' * 60}{i}": 1 for i in range(1000)},
    "words": lambda: {"metadata": {f"x{i}": TEXT for i in range(1000)}, "user": TEXT * 40_000},
    "values": lambda: {"metadata": {"x": [[i] for i in range(49_000)]}},
}
"""For every route."""
OF_CHATS: dict[str, Callable[[], Document]] = {
    "circle": lambda: {"tools": [named(circle(60))], "tool_choice": "required"},
    "circles": lambda: {"tools": [named(circle(30), f"f{i}") for i in range(40)]},
    "ladder": lambda: {"tools": [named(ladder(8, 6))], "tool_choice": "required"},
    "form": lambda: {"response_format": {"type": "json_schema", "schema": circle(50)}},
    "union": lambda: {
        "tools": [named({"properties": {"x": {"anyOf": [{"type": "string"}] * 49_000}}})],
        "tool_choice": "required",
    },
    "enum": lambda: {
        "tools": [named({"properties": {"x": {"enum": [*range(98_000)]}}})],
        "tool_choice": "required",
    },
    "parameters": lambda: {"tools": tools_of(1, 20_000), "tool_choice": "required"},
    "tools": lambda: several(1000),
    "tools of one's choice": lambda: several(1000, tool_choice="auto"),
    "60 tools": lambda: {"tools": tools_of(60, 6), "tool_choice": "required"},
    "allowed": lambda: allowed(20_000),
    "hosted": lambda: {"tools": [{"type": f"t{i}"} for i in range(1000)]},
    "variables": lambda: {"chat_template_kwargs": {f"x{i}": [i] for i in range(30_000)}},
    "turns": lambda: {"messages": [turn("user", "a")] * 10_000},
    "parts": lambda: {"messages": [turn("user", [{"type": "text", "text": "a"}] * 30_000)]},
    "calls": lambda: {"messages": [*SAID, turn("assistant", "", tool_calls=[CALL] * 10_000)]},
    "results": lambda: {
        "messages": [*SAID, turn("assistant", "", tool_calls=[CALL]), turn("tool", TEXT * 60_000)]
    },
    "system": lambda: {"messages": [*[turn("system", "a")] * 9999, *SAID]},
    "long": lambda: {"messages": [turn("user", TEXT * 60_000)]},
    "stream": lambda: {"stream": True, "tools": tools_of(1000, 20), "tool_choice": "none"},
}
"""For every route that takes a conversation."""
COUNTS = [route for route in CHATS if "max_tokens" not in json.dumps(BODIES[route])]
COUNTS = [route for route in COUNTS if route not in ("/v1/responses", "/api/chat")]
ALWAYS = ("allowed", "turns", "calls", "long")
"""Those that are worst for the routes that only read a conversation (`COUNTS`)."""
SHOWN = (
    *("messages", "input", "prompt", "tools", "tool_choice", "stop", "logit_bias", "metadata"),
    *("response_format", "structured_outputs", "chat_template_kwargs", "options", "documents"),
)
"""Fields that are drawn."""
ODD: dict[str, list[Document]] = {
    "/v1/completions": [
        {"prompt": ["a"] * 300},
        {"prompt": ["a"] * 300, "stream": True, "timings_per_token": True},
        {"prompt": TEXT * 60_000},
        {"prompt": [1] * 99_000},
        {"prompt": "a", "n": 64, "max_tokens": 100, "logprobs": 20, "ignore_eos": True},
        {"prompt": "a " * 400, "echo": True, "logprobs": 20, "max_tokens": 1, "n": 16},
        {"prompt": "a", "stop": [f"{i}{TEXT * 50}" for i in range(1000)]},
        {"prompt": "a", "logit_bias": {str(i % 260): 1.0 for i in range(1000)}},
        {"prompt": "a", "guided_json": circle(50)},
        {"prompt": "a", "guided_choice": [f"x{i}" for i in range(1000)]},
        {"prompt": "a", "guided_regex": "(a|b)" * 12_000},
        {"prompt": "a", "prediction": TEXT * 60_000},
    ],
    "/completion": [
        {"prompt": ["a"] * 300, "n_predict": 1},
        {"prompt": ["a"] * 300, "n_predict": 1, "stream": True},
        {"prompt": [["a", 1] * 24_000], "n_predict": 1},
        {"prompt": "a", "n_predict": 4, "logit_bias": [[TEXT * 60, 1]] * 1000},
        {"prompt": "a", "n_predict": 1, "response_fields": ["a/" * 1000] * 1000},
    ],
    "/v1/embeddings": [
        {"input": ["a", "b", "c", "d"] * 256},
        {"input": ["a", "b"] * 512, "encoding_format": "base64"},
        {"input": [[1, 2]] * 512, "embd_normalize": 0},
    ],
    "/embedding": [{"content": ["a", "b", "c", "d"] * 256}],
    "/api/embed": [{"input": ["a", "b", "c", "d"] * 256}],
    "/v1/rerank": [
        {"query": "a", "documents": ["a", "b", "c", "d"] * 256},
        {"query": "a", "documents": ["a" * 1900] * 8 + ["a"] * 400, "return_documents": True},
        {"query": "a", "documents": [{"text": "a", "x": [1] * 40}] * 2000},
        {"query": TEXT * 60_000, "documents": ["a"]},
    ],
    "/tokenize": [
        {"prompt": TEXT * 9_000, "with_pieces": True},
        {"prompt": TEXT * 60_000},
        {"messages": [turn("user", "a")] * 10_000},
    ],
    "/detokenize": [{"tokens": [5] * 99_000}, {"tokens": [*range(99_000)]}],
    "/infill": [
        {"input_extra": [{"text": "a"}] * 1000, "n_predict": 1},
        {"input_prefix": TEXT * 60_000},
    ],
    "/v1/responses": [
        {"input": [{"role": "user", "content": "a"}] * 10_000},
        {"input": [{"type": f"x{i}_call"} for i in range(10_000)]},
        {"input": "a", "metadata": {f"x{i}": TEXT for i in range(1000)}, "stream": True},
        {"input": "a", "tools": [{"type": "namespace", "tools": tools_of(1, 1) * 20_000}]},
    ],
    "/v1/messages": [{"messages": SAID, "system": [{"type": "text", "text": "a"}] * 1000}],
    "/api/pull": [{"model": "org/" + "a" * 200_000}, {"model": "org/\0"}],
    "/api/show": [{"model": "a" * 3_000_000}],
}
"""What is worst for a single route."""


def worst() -> Iterator[tuple[str, str, Document]]:
    """Name routes and bodies."""
    for route, base in BODIES.items():
        for name, body in OF_ALL.items():
            yield route, name, {**base, **body()}
        for name, body in OF_CHATS.items() if route in CHATS else ():
            if name not in ALWAYS and route in COUNTS:
                continue
            found = {**base, **body()}
            if (field := CHATS[route]) != "messages" and "messages" in found:
                found[field] = found.pop("messages")
            yield route, name, found
        for number, odd in enumerate(ODD.get(route, ())):
            yield route, f"of its own {number}", {"max_tokens": 1, **odd}


def test_every_route_that_takes_a_body_is_tried() -> None:
    paths: dict[object, set[str]] = {}
    for router in (module.router for module in DIALECTS):
        for route in router.routes:
            if isinstance(route, JsonRoute):
                paths.setdefault(route.endpoint, set()).add(route.path)
    assert all(found & BODIES.keys() for found in paths.values()), paths


QUICK = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/completions",
    "/completion",
    "/v1/embeddings",
)
"""One for each thing that takes long; all of them are slow."""


@pytest.mark.parametrize(
    "routes", [QUICK, pytest.param(BODIES.keys() - {*QUICK}, marks=pytest.mark.slow, id="others")]
)
def test_the_worst_bodies_that_are_known_never_hold_the_event_loop(url, turns, routes) -> None:
    slow = []
    for route, name, body in worst():
        if route not in routes:
            continue
        turns.take()
        status = ask(url, route, body)
        seconds, what = turns.take()
        if seconds > MOST_S or status == 500:
            slow.append(f"{route}, {name}: {status}, {seconds:.2f} s in {what[:200]}")
    assert not slow, "\n".join(slow)


def repeated(value: object, times: int) -> list[object]:
    """As many times as a body has room for: values hold repeated ones."""
    return [value] * max(1, min(times, 500_000 // (len(json.dumps(value)) + 1)))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**40) | st.sampled_from(["", "a", "$ref", TEXT]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "anyOf", "items", "a", "b"]), inner, max_size=4)
        | st.tuples(inner, st.sampled_from([50, 900])).map(lambda found: repeated(*found))
    ),
    max_leaves=8,
)


@settings(max_examples=60, suppress_health_check=[*HealthCheck], database=None)
@given(
    route=st.sampled_from([*BODIES]),
    fields=st.dictionaries(
        st.sampled_from([*SHOWN, "x", "user"]), JSON_VALUES, min_size=1, max_size=3
    ),
    count=st.sampled_from([0, 0, 900, 50_000]),
)
def test_no_drawn_body_holds_the_event_loop(url, turns, route, fields, count) -> None:
    turns.take()
    body = BODIES[route] | fields | {f"y{i}": i for i in range(count)}
    if len(json.dumps(body)) < 4_000_000:
        assert ask(url, route, body) < 600
    seconds, what = turns.take()
    assert seconds <= MOST_S, what


def test_sixty_plain_tools_can_be_required(url: str) -> None:
    body = {"messages": SAID, "max_tokens": 4, "tools": tools_of(60, 6), "tool_choice": "required"}
    assert ask(url, "/v1/chat/completions", body) == 200
