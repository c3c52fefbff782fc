"""Structured output over HTTP: valid, the offline tokens, in all the ways that clients ask for it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.guidance import Grammars
from forerun.llm import LLM
from forerun.server.async_llm import AsyncLLM
from tests.server.conftest import openai_client, running

pytest.importorskip("llguidance", reason="structured output needs llguidance")

QUESTION = [{"role": "user", "content": "Describe a person as JSON."}]
OWN = {"model": "tiny", "messages": QUESTION, "max_tokens": 80, "temperature": 0}


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=16)
    age: int = Field(ge=0, le=99)
    is_happy: bool


SCHEMA = Person.model_json_schema()


def test_the_client_parses_answers_into_its_own_model(client, llm):
    parsed = client.chat.completions.parse(response_format=Person, **OWN)
    assert isinstance(parsed.choices[0].message.parsed, Person)
    form = StructuredOutputsParams(json=SCHEMA)
    params = SamplingParams(temperature=0, max_tokens=80, structured_outputs=form)
    assert parsed.choices[0].message.content == llm.chat(QUESTION, params)[0].outputs[0].text
    assert parsed.timings["draft_n_accepted"] > 5
    with client.chat.completions.stream(response_format=Person, **OWN) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.parsed == parsed.choices[0].message.parsed


@pytest.mark.parametrize(
    "extra",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": SCHEMA},
        {"json_schema": SCHEMA, "response_format": {"type": "json_object"}},
    ],
    ids=["openai", "llama-server", "vllm", "older vllm", "llama.cpp", "llama.cpp with a type"],
)
def test_every_spelling_of_a_schema_is_read(client, extra):
    answer = client.chat.completions.create(extra_body=extra, **OWN)
    Person.model_validate_json(answer.choices[0].message.content)


def test_other_forms_are_read(client):
    def text(route=client.completions, **extra):
        own = {"model": "tiny", "prompt": "A mail address:", "max_tokens": 60, "temperature": 0}
        return route.create(extra_body=extra, **own).choices[0].text

    assert text(guided_choice=["yes", "no"]) in ("yes", "no")
    assert re.fullmatch("[a-z]{2,9}@[a-z]{2,9}", text(guided_regex="[a-z]{2,9}@[a-z]{2,9}"))
    assert text(grammar='root ::= "a" | "b"') in "ab"
    assert text(structured_outputs={"choice": ["maybe"]}) == "maybe"
    form = {"type": "json_object"}
    assert text(response_format=form).startswith("{")
    assert text(response_format={"type": "text"}) == text()


def test_large_and_deep_schemas_are_refused_before_they_are_compiled(llm):
    def nested(levels):
        return {"type": "string"} if not levels else {"items": nested(levels - 1)}

    bounds = {"max_schema_kb": 0.5, "max_schema_depth": 8}
    with running(lambda: llm, **bounds) as (url, _), openai_client(url) as client:

        def ask(**extra):
            return client.chat.completions.create(extra_body=extra, **OWN)

        with pytest.raises(openai.BadRequestError, match="--max-schema-kb"):
            ask(guided_choice=["word" * 100, "other" * 100])
        with pytest.raises(
            openai.BadRequestError, match=r"nested 9 levels deep.*--max-schema-depth"
        ):
            ask(guided_json=nested(8))
        assert ask(guided_json=nested(6)).choices[0].message.content


@pytest.fixture
def slow_grammars(llm, monkeypatch) -> threading.Event:
    """Grammars for which the vocabulary is not read before this is set."""
    is_read, grammars = threading.Event(), Grammars(llm.tokenizer, llm.model.config.vocab_size)
    read = grammars._read_vocabulary
    monkeypatch.setattr(grammars, "_read_vocabulary", lambda: is_read.wait(60) and read())
    monkeypatch.setattr(llm, "grammars", grammars)
    monkeypatch.setattr(llm.engine.intake, "grammars", grammars.begin)
    return is_read


def has_read_a_prompt(llm: LLM) -> bool:
    """Whether all of a prompt is in the cache but its last token."""
    states = [*llm.engine.sequences.values()]
    return any(llm.engine.num_read(run.seq) == run.seq.num_prompt - 1 for run in states)


@pytest.mark.parametrize("regex", ["[a-z]{2,9}", "a("], ids=["right", "wrong"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_is_read_while_the_vocabulary_is_read_for_its_form(
    client, llm, slow_grammars, regex, stream
):
    """What is wrong with the form is told as ever: with the status, before a stream begins."""

    def post() -> httpx.Response:
        body = {**OWN, "guided_regex": regex, "stream": stream, "seed": 1}
        url = f"{client.base_url}chat/completions"
        return httpx.post(url, json=body, timeout=60)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post)
        while not has_read_a_prompt(llm):
            assert not first.done()
            time.sleep(0.005)
        slow_grammars.set()
    early, late = first.result(), post()
    assert early.status_code == late.status_code == (400 if regex == "a(" else 200)
    if regex == "a(":
        assert early.json() == late.json()
        assert early.json()["error"]["param"] == "guided_regex"
    elif not stream:
        said = [answer.json()["choices"][0]["message"]["content"] for answer in (early, late)]
        assert said[0] == said[1]
        assert re.fullmatch(regex, said[0])


@pytest.mark.parametrize("budget", [None, "1GiB"])
def test_a_server_reads_the_vocabulary_before_it_is_asked_unless_memory_is_counted(
    llm, slow_grammars, monkeypatch, budget
):
    is_asked = threading.Event()
    monkeypatch.setattr(llm.grammars, "_read_vocabulary", is_asked.set)
    monkeypatch.setattr(llm, "config", replace(llm.config, memory_budget=budget))
    with running(lambda: llm):
        assert is_asked.wait(0.2 if budget else 60) == (budget is None)


def test_an_async_program_is_told_what_is_wrong_with_a_form(llm, slow_grammars):
    async def run() -> None:
        form = StructuredOutputsParams(regex="a(")
        async with AsyncLLM(llm) as own:
            asked = asyncio.ensure_future(
                own.chat(QUESTION, SamplingParams(structured_outputs=form))
            )
            while not has_read_a_prompt(llm):
                await asyncio.sleep(0.005)
            slow_grammars.set()
            with pytest.raises(RequestError, match="regex cannot be used"):
                await asked

    asyncio.run(run())
