"""Structured output over HTTP: valid, the offline tokens, in all the ways that clients ask for it."""

from __future__ import annotations

import json
import re

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
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
    ],
    ids=["openai", "llama-server", "vllm", "older vllm", "llama.cpp"],
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
