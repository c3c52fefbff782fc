"""gpt-oss' answers are messages: a form or a call that is asked for stands in the last one, behind any thought."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.guidance import Grammars
from forerun.llm import LLM
from forerun.text.gguf_tokenizer import tokenizer_from_gguf
from forerun.text.parsing.harmony import CALL, FINAL
from forerun.weights.checkpoint import open_checkpoint
from tests.server.conftest import chunks, json_schema, post, running, tool

pytest.importorskip("llguidance", reason="structured output needs llguidance")

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if tools %}<|call|>{% endif %}<|start|>assistant{# <|channel|> #}"
)
SPARE = {
    "<repo_name>": "<|start|>",
    "<reponame>": "<|end|>",
    "<file_sep>": "<|message|>",
    "<filename>": "<|channel|>",
    "<gh_stars>": "<|constrain|>",
    "<issue_start>": "<|return|>",
    "<issue_comment>": "<|call|>",
}
"""Control tokens that the default model never writes, and what they are called here."""
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "colour": {"enum": ["red", "green"]}},
    "required": ["ok", "colour"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "Is grass red? Answer as JSON."}]
BODY = {"messages": MESSAGES, "temperature": 0, "max_tokens": 60}
ADD = tool("add", a={"type": "integer", "minimum": 0, "maximum": 99})


@pytest.fixture(scope="module")
def harmony(llm, default_model) -> LLM:
    """The default model with gpt-oss' control tokens and template."""
    own, metadata = copy.copy(llm), open_checkpoint(default_model).metadata
    tokens = [SPARE.get(token, token) for token in metadata["tokenizer.ggml.tokens"]]
    own.tokenizer = tokenizer_from_gguf({**metadata, "tokenizer.ggml.tokens": tokens})
    own.tokenizer.use_chat_template(TEMPLATE)
    own.grammars = Grammars(own.tokenizer, llm.model.config.vocab_size)
    own._loaded = replace(llm._loaded, tokenizer=own.tokenizer, grammars=own.grammars)
    return own.with_drafter("prompt_lookup:ngram_min=1")


@pytest.fixture(scope="module")
def channels(harmony) -> Iterator[str]:
    with running(lambda: harmony) as (url, _):
        yield url


def message_of(found: Mapping[str, list[dict]]) -> dict:
    return found["choices"][0]["message"]


def test_a_form_is_that_of_the_final_message(channels):
    """A thought has half of the tokens at most; what is forced between messages is drafted."""
    found = post(channels, "/v1/chat/completions", BODY | {"response_format": json_schema(SCHEMA)})
    message = message_of(found)
    assert message["reasoning_content"]
    assert json.loads(message["content"]).keys() == {"ok", "colour"}
    assert found["choices"][0]["finish_reason"] == "stop"
    assert found["timings"]["draft_n_accepted"] > 5
    body = BODY | {"response_format": json_schema(SCHEMA)}
    deltas = [one["choices"][0]["delta"] for one in chunks(channels, "/v1/chat/completions", body)]
    for name in ("reasoning_content", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]


def test_responses_and_messages_say_the_same(channels):
    form = {"structured_outputs": {"choice": ["red", "green"]}, "temperature": 0}
    body = {"input": "Is grass red?", "max_output_tokens": 60, **form}
    *_, said = post(channels, "/v1/responses", body)["output"]
    assert said["content"][0]["text"] in ("red", "green")
    body = {"messages": MESSAGES, "max_tokens": 60, **form}
    *_, text = post(channels, "/v1/messages", body)["content"]
    assert text["text"] in ("red", "green")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_calls_that_are_required_stand_in_the_commentary(channels, choice):
    body = BODY | {"tools": [ADD, tool("other")], "tool_choice": choice}
    message = message_of(post(channels, "/v1/chat/completions", body))
    assert not message["content"]
    (call,) = message["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments.keys() == ({"a"} if call["function"]["name"] == "add" else set())


def test_a_form_and_tools_are_a_call_or_the_form(channels):
    body = BODY | {"tools": [ADD], "response_format": json_schema(SCHEMA), "max_tokens": 200}
    message = message_of(post(channels, "/v1/chat/completions", body))
    if message.get("tool_calls"):
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]).keys() == {"a"}
    elif message["content"]:
        assert json.loads(message["content"]).keys() == {"ok", "colour"}


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_drafts_change_no_token_of_a_form_in_channels(harmony, temperature):
    form = StructuredOutputsParams(json=SCHEMA, after=FINAL, max_before=60)
    params = SamplingParams(
        temperature=temperature,
        seed=7,
        max_tokens=160,
        structured_outputs=form,
        skip_special_tokens=False,
    )
    requests = [one.submit(MESSAGES, params) for one in (harmony.with_drafter("none"), harmony)]
    for request in requests:
        request.wait()
    plain, drafted = (request.output().outputs[0] for request in requests)
    assert plain.token_ids == drafted.token_ids
    assert plain.finish_reason == "stop"
    stats = requests[1].runs[0].stats
    assert 0 < stats.accepted < stats.drafted
    *_, last = drafted.text.partition(FINAL)
    assert json.loads(last).keys() == {"ok", "colour"}


def test_a_thought_that_is_too_long_ends_behind_a_message_head(harmony):
    """Wherever the tokens are used up, messages stay whole."""
    tokenizer, text = harmony.tokenizer, "<|channel|>analysis<|message|>"
    head = tokenizer.encode(text, bos=False)
    for max_before in range(len(head) + 2):
        form = StructuredOutputsParams(choice=["yes"], after=CALL, max_before=max_before)
        state = harmony.grammars.start(form)
        for token in head:
            assert state.allows(token)
            assert state.allowed()[token]
            state = state.advance(token)
        closing = [*tokenizer.encode(f"<|end|><|start|>assistant{CALL}", bos=False)]
        is_over = max_before <= len(head)
        assert [*state.forced()] == (closing if is_over else [])
        assert state.allows(closing[0])
