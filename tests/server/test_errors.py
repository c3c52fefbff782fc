"""What users get wrong is told with 400 by the name they sent, in the form of the API that they asked."""

from __future__ import annotations

import re

import httpx
import pytest

from forerun.compat.request_fields import STATE
from forerun.core.params import MAX_IDS, MAX_N
from forerun.text.chat_template import RESERVED
from tests.server.conftest import json_schema, tool

SAID = [{"role": "user", "content": "One two three one two three"}]
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
BAD_SCHEMA = {"type": "nonsense"}
CALL = {"type": "function"}
STRICT = "tools[0].strict must be true or false, got 'yes'"
WIZARD = [{"role": "wizard", "content": "a"}]
ROLES = "[0].role must be system, developer, user, assistant, tool or function, got 'wizard'"
BODIES = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": SAID},
    "/v1/responses": {"input": "a", "max_output_tokens": 8},
    "/v1/messages": {"messages": SAID, "max_tokens": 8},
    "/completion": {"prompt": "a"},
    "/tokenize": {},
    "/detokenize": {},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/api/generate": {"prompt": "One two", "stream": False},
    "/api/chat": {"messages": SAID, "stream": False},
}
LONG = "The quick brown fox jumps over the lazy dog, 123 times. " * 5000
CONTEXT = "maximum context length is 512 tokens"
IN_FORM = ("return_progress", "timings_per_token", "logprobs")
"""Fields for which some forms of answers have no place."""
PICTURE = {"images": ["aGk="]}
NAMELESS = {"type": "object", "properties": {}}
"""What a function takes."""
WRONG = {
    "/v1/completions": [
        ({"prompt": ...}, "prompt is missing", "prompt"),
        ({"prompt": {}}, "prompt must be a text, token ids, or a list", "prompt"),
        ({"prompt": [[1], "a"]}, "prompt must be a text, token ids", "prompt"),
        ({"prompt": ""}, "prompt is empty", None),
        ({"prompt": [10**9]}, "token id 1000000000 is not in the voc", None),
        ({"prompt": ["a"] * 300}, "n x prompts = 300 exceeds the limit", "prompt"),
        ({"n": 65}, "n must be a whole number from 1 to 64", "n"),
        ({"n": MAX_N + 1}, "", "n"),
        ({"n": "2"}, "n must be a valid integer, got '2'", "n"),
        ({"seed": 1.5}, "seed must be a valid integer", "seed"),
        ({"seed": "x"}, "seed must be a valid integer", "seed"),
        ({"seed": 2**64}, "seed must be a whole number from 0 to 2**63 - 1", "seed"),
        ({"max_tokens": 16.5}, "max_tokens must be a valid integer", "max_tokens"),
        ({"top_p": -0.1}, "top_p must be above 0", "top_p"),
        ({"top_n_sigma": 0.5}, "(allowed: <=0, false)", None),
        ({"best_of": 3}, "(allowed: 1, 0)", None),
        *(({name: [1]}, "", name) for name in ("banned_strings", "bannedTokens", "documents")),
        ({"logit_bias": {"x": 1}}, "logit_bias must be", "logit_bias"),
        ({"n_predict": -3}, "max_tokens must be a whole", "n_predict"),
        ({"repeat_penalty": -1}, "", "repeat_penalty"),
        ({"max_tokens": 3, "max_new_tokens": 4}, "max_tokens differ", None),
        ({"guided_json": []}, "must be a JSON schema", None),
        ({"guided_json": BAD_SCHEMA}, "", "guided_json"),
        ({"json_schema": BAD_SCHEMA}, "", "json_schema"),
        ({"structured_outputs": {"json": BAD_SCHEMA}}, "", "structured_outputs"),
        ({"guided_regex": "("}, "", "guided_regex"),
        ({"grammar": "((("}, "", "grammar"),
        ({"logit_bias": {str(i): 1.0 for i in range(MAX_IDS + 1)}}, "has 1025 entries", None),
        ({"stop_token_ids": [1] * 2000}, "stop_token_ids has 2000 entries", None),
        ({"stop": [1] * 2000}, "stop has 2000 entries", None),
        ({"metadata": [{}] * 200_000}, "limit of 100000 values", None),
        ({"suffix": "b"}, "such as Qwen2.5-Coder", "suffix"),
        *(({"prompt": prompt}, CONTEXT, "prompt") for prompt in (LONG, ["a", LONG], [7] * 50_000)),
        ({"prediction": LONG}, CONTEXT, "prediction"),
    ],
    "/v1/chat/completions": [
        ({"messages": []}, "the conversation is empty", None),
        ({"messages": [{"role": "user", "content": LONG}]}, CONTEXT, "messages"),
        ({"messages": [{"role": "user"}]}, "needs role and content", None),
        ({"messages": "hi"}, "messages must be a list of", "messages"),
        ({"messages": WIZARD}, f"messages{ROLES}", "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "part of type 'image_url'",
            None,
        ),
        ({"max_completion_tokens": -2}, "", "max_completion_tokens"),
        ({"response_format": json_schema(BAD_SCHEMA)}, "", "response_format"),
        ({"samplers": [None, {}]}, "samplers.0 must be a valid string, got None", None),
        ({"response_format": {"type": "xml"}}, "json_object or json_schema, got 'xml'", None),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema is missing", None),
        ({"guided_json": {"type": "flower"}}, "json cannot be used: Invalid type: flower", None),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "exactly one of", None),
        (
            {"guided_json": SCHEMA, "response_format": json_schema(SCHEMA)},
            "give response_format or guided_json, not both",
            "guided_json",
        ),
        ({"guided_json": SCHEMA, "ignore_eos": True}, "exclude each other", None),
        ({"structured_outputs": {"jsn": {}}}, "did you mean 'json'", None),
        ({"guided_regex": "(?=a)"}, "regex cannot be used", None),
        ({"guided_choice": []}, "choice must be a list of texts", None),
        ({"speculative": {"drafter": "eagle3"}}, "must be prompt_lookup, auto or none", None),
        ({"speculative": {"max_draft": -1}}, "whole number from 0, got -1", None),
        ({"prediction": {"content": 7}}, "prediction must be", "prediction"),
        ({"prediction": {"type": "content"}}, "prediction must be", None),
        ({"prediction": {"type": "content", "content": [{"image": 1}]}}, "prediction must", None),
        ({"reasoning_effort": "very"}, "one of none, minimal, low", "reasoning_effort"),
        ({"thinking": {"type": "often"}}, "one of enabled, adaptive, disabled", "thinking"),
        ({"tools": [CALL]}, "tools[0].function must have a name", None),
        ({"tools": [tool("a b")]}, "1 to 128 letters, digits", None),
        ({"tools": [tool("a" * 129)]}, "1 to 128 letters, digits", None),
        ({"tools": [tool("a"), tool("a")]}, "different names", None),
        ({"tools": [tool("a")], "tool_choice": CALL}, "tool_choice must be none", None),
        ({"tools": [tool("a")], "tool_choice": "often"}, "tool_choice must be none", None),
        (
            {"tools": [tool("a")], "tool_choice": {"function": {"name": "b"}}},
            "one of the tools (a), got 'b'",
            None,
        ),
        (
            {"tools": [tool("a")], "tool_choice": {"function": {"name": ["a"]}}},
            "one of the tools (a), got ['a']",
            None,
        ),
        ({"tool_choice": "required"}, "tool_choice needs tools", None),
        ({"tools": [CALL | {"function": {"name": "a", "strict": "yes"}}]}, STRICT, None),
        (
            {"tools": [tool("a", x={"type": "flower"})], "tool_choice": "required"},
            "Invalid type: flower",
            None,
        ),
        ({"tools": [tool("a")], "guided_regex": "b"}, "response_format of JSON only", None),
        ({"functions": [{}]}, "deprecated", None),
        *(({name: [1]}, "", name) for name in ("banned_tokens", "images")),
        ({"allowed_token_ids": []}, "token ids, at least one", "allowed_token_ids"),
        ({"allowed_token_ids": [10**9]}, "is not in the vocabulary", None),
        ({"bad_words": [" "]}, "words, none empty", "bad_words"),
        ({"bad_words": 1}, "bad_words must be a valid list", "bad_words"),
        *(
            ({"thinking": {"type": "enabled", "budget_tokens": given}}, "whole number", "thinking")
            for given in ("1000", 1.5, True)
        ),
        ({"reasoning": {"max_tokens": "5"}}, "reasoning.max_tokens must be a whole", None),
        ({"reasoning": {"enabled": "no"}}, "reasoning.enabled must be true", "reasoning"),
        ({"reasoning": "low"}, "reasoning must be an object, got 'low'", "reasoning"),
        ({"thinking": [1]}, "thinking must be an object, got [1]", "thinking"),
        ({"thinking": {}}, "thinking.type is missing: it must be one of enabled", "thinking"),
        ({"speculative": {"max_draft": True}}, "max_draft must be a whole number from 0", None),
        ({"stream_options": 1}, "stream_options must be an object", "stream_options"),
        ({"prediction": {"content": [{"text": 1}]}}, "prediction must be {", "prediction"),
        *(
            (
                {"tools": [tool("a"), tool("b")], "tool_choice": choice},
                "tool_choice",
                "tool_choice",
            )
            for choice in (
                {"type": "mcp"},
                {"type": "functions", "function": {}},
                {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
                {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("c")]}},
            )
        ),
    ],
    "/v1/responses": [
        ({"input": 7}, "input must be a text or a list of items", "input"),
        ({"input": LONG}, CONTEXT, "input"),
        ({"input": [{"type": "image"}]}, "input[0].type must be message", "input"),
        ({"input": WIZARD}, f"input{ROLES}", "input"),
        ({"max_output_tokens": -2}, "", "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "schema": BAD_SCHEMA}}}, "", "text.format"),
        ({"text": {"format": {"type": "verse"}}}, "", "text.format"),
        ({"text": {"format": {"type": "xml"}}}, "json_schema, got 'xml'", None),
        ({"input": [{"type": "compaction"}]}, "input[0].type must be message", "input"),
        ({"n": 2}, "n is supported in /v1/chat/completions only", "n"),
        *(({name: True}, f"{name} is supported in", name) for name in IN_FORM),
        ({"tools": [CALL | {"name": "a", "parameters": NAMELESS, "strict": "yes"}]}, STRICT, None),
    ],
    "/v1/messages": [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "type 'image'", None),
        (
            {"messages": [{"role": "narrator", "content": "A"}, *SAID]},
            "user, assistant or system",
            None,
        ),
        (
            {"tools": [{"name": "w", "input_schema": SCHEMA}], "tool_choice": {"type": "some"}},
            "auto, any, none or tool",
            None,
        ),
        ({"tool_choice": {"type": ["any"]}}, "auto, any, none or tool, got ['any']", None),
        ({"temperature": 200}, "temperature must be", None),
        *(({name: True}, f"{name} is supported in", name) for name in IN_FORM),
        ({"tools": [{"name": "a", "input_schema": NAMELESS, "strict": "yes"}]}, STRICT, None),
    ],
    "/completion": [
        *(
            ({"prompt": prompt}, "prompt", "prompt")
            for prompt in ([], {}, [[]], 5, [1.5], {"prompt_string": "a", "multimodal_data": ["x"]})
        ),
        *(
            ({"logit_bias": bias}, "", "logit_bias")
            for bias in ([5], [[9]], [[9, "a"]], [[9, True]])
        ),
    ],
    "/tokenize": [
        ({}, "give one of prompt, messages and content", "prompt"),
        ({"messages": WIZARD}, f"messages{ROLES}", "messages"),
        ({"prompt": "a" * 1_100_000}, "at most 1000000 are counted at once", "prompt"),
        ({"content": "\u4e2d" * 400_000}, "at most 1000000 are counted at once", "content"),
    ],
    "/detokenize": [
        ({}, "tokens is missing", "tokens"),
        ({"tokens": [10**9]}, "not in the vocabulary", "tokens"),
    ],
    "/infill": [({}, "such as Qwen2.5-Coder", None, 501)],
    "/v1/rerank": [({"documents": []}, "documents", "documents")],
    "/api/generate": [
        (PICTURE, "does not accept images", None),
        (PICTURE | {"raw": True}, "does not accept images", None),
        ({"context": [10**9]}, "not in the voc", None),
        ({"context": "abc"}, "context must be", None),
        ({"raw": True, "options": {"n": 2}}, "n is supported in", None),
        ({"options": {"n": 2}}, "n is supported in", None),
        ({"format": "yaml"}, 'format must be "json"', None),
        ({"template": "{{ .Prompt }}"}, "template=", None),
    ],
    "/api/chat": [
        ({"messages": [SAID[0] | PICTURE]}, "does not accept images", None),
        ({"format": {"type": "nonsense"}}, "nonsense", None),
        ({"format": "yaml"}, 'format must be "json"', None),
    ],
}
"""By route: what is added to a body that is right, words of the message, the field that it names, the status if it is
not 400."""
OURS = {"structured_outputs", "response_format", "max_tokens", "messages"}
"""Fields that have other names elsewhere."""


CHATS = {
    "/v1/chat/completions": {"messages": SAID},
    "/chat/completions": {"messages": SAID},
    "/v1/chat/completions/input_tokens": {"messages": SAID},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": SAID, "max_tokens": 8},
    "/v1/messages/count_tokens": {"messages": SAID},
    "/apply-template": {"messages": SAID},
}
"""The routes that render a conversation with what the client gives the template."""


@pytest.mark.parametrize("name", STATE)
@pytest.mark.parametrize("route", [*CHATS, "/api/chat", "/api/generate"])
def test_what_stands_for_earlier_turns_is_refused_by_name(url, route, name):
    """Without them the answer would be one to another question."""
    bodies = CHATS | {"/api/chat": {"messages": SAID}, "/api/generate": {"prompt": "a"}}
    if route == "/api/generate" and name in ("prompt", "context"):
        return
    for value in ("id_1", {"id": "id_1"}, [1, 2]):
        answer = httpx.post(url + route, json=bodies[route] | {name: value}, timeout=60)
        assert answer.status_code == 400, answer.text
        assert f"{name}=" in answer.text
        assert "nothing is stored" in answer.text
    neutral = {name: None, "stream": False, "options": {"num_predict": 1}}
    answer = httpx.post(url + route, json=bodies[route] | neutral, timeout=60)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", sorted(RESERVED | {"range", "raise_exception"}))
@pytest.mark.parametrize("route", CHATS)
def test_a_client_gives_a_template_nothing_of_the_renderers_own(url, route, name):
    body = CHATS[route] | {"chat_template_kwargs": {name: "{{ 7*7 }}"}}
    answer = httpx.post(url + route, json=body, timeout=60)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert f"not '{name}'" in error["message"]
    if "/messages" not in route:
        assert error["param"] == "chat_template_kwargs"


@pytest.mark.parametrize("route", [*CHATS, "/tokenize"])
def test_a_client_brings_no_template(url, route):
    body = CHATS.get(route, {"messages": SAID}) | {"chat_template": "{{ 7*7 }}"}
    answer = httpx.post(url + route, json=body, timeout=60)
    assert answer.status_code == 400
    assert "chat_template" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "extra", "words", "param", "status"),
    [(route, *row, 400)[:5] for route, rows in WRONG.items() for row in rows],
)
def test_what_is_wrong_is_named(url, route, extra, words, param, status):
    body = {name: value for name, value in (BODIES[route] | extra).items() if value is not ...}
    answer = httpx.post(url + route, json=body, timeout=60)
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert answer.headers["content-type"] == "application/json"
    if route.startswith("/api/"):
        assert words in error
        assert "\n" not in error
        return
    is_lacking, is_long = "needs a model" in error["message"], words == CONTEXT
    kind = "not_supported_error" if is_lacking else "invalid_request_error"
    assert error["type"] == ("exceed_context_size_error" if is_long else kind)
    assert words in error["message"]
    assert "\n" not in error["message"]
    if route == "/v1/messages":
        assert answer.json()["type"] == "error"
        return
    assert error.keys() >= {"message", "type", "param", "code"}
    if is_long:
        assert (error["code"], error["n_ctx"]) == ("context_length_exceeded", 512)
        assert error["n_prompt_tokens"] > 511
    if param is not None:
        assert error["param"].split(".json_schema")[0] == param
        is_said = f"(given as {param})" in error["message"]
        assert is_said or not any(f"{other} must" in error["message"] for other in OURS - {param})


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_claude_code_looks_for(url):
    body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 8}
    for stream in (True, False):
        answer = httpx.post(f"{url}/v1/messages", json=body | {"stream": stream}, timeout=60)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        found = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", error["message"])
        assert int(found[1]) > int(found[2]) == 511
