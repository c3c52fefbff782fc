"""Ollama's clients find the models and talk with them; an answer is that of `/v1/chat/completions`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from forerun.core.params import SamplingParams
from forerun.server.api.ollama import OllamaWriter
from forerun.server.models import ModelSource
from tests.server.conftest import post, running, running_models, tool

ASKED = [{"role": "user", "content": "Count from one to five."}]
GREEDY = {"temperature": 0, "num_predict": 12, "num_ctx": 512}
WEATHER = tool("weather", city={"type": "string", "maxLength": 8})


def lines(url: str, route: str, body: dict) -> list[dict]:
    answer = httpx.post(f"{url}{route}", json=body, timeout=60)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_fields_that_are_empty_are_taken(url):
    empty = {"images": [], "template": "", "context": []}
    asked = {"prompt": "One two", "stream": False, "options": GREEDY} | empty
    assert post(url, "/api/generate", asked)["done"]


def test_a_lone_surrogate_ends_no_stream():
    """A model may cut the escape of an emoji."""
    line = OllamaWriter.frame(None, {"message": {"content": "\ud83d"}})
    assert json.loads(line) == {"message": {"content": "\ud83d"}}
    assert line.endswith(b"\n")


def test_nothing_asked_only_loads(url):
    for route in ("/api/chat", "/api/generate"):
        assert post(url, route, {"model": "tiny"})["done_reason"] == "load"


@pytest.fixture(scope="module")
def two(llm) -> Iterator[str]:
    sources = [ModelSource("a", lambda: llm), ModelSource("b", lambda: llm, max_len=lambda: 77)]
    with running_models(sources) as (url, _):
        yield url


def test_models_are_found_loaded_or_not(two):
    def get(route: str) -> dict:
        return httpx.get(f"{two}{route}", timeout=60).json()

    # what VS Code Copilot asks for is 0.6.4, what Codex does 0.13.4
    assert tuple(map(int, get("/api/version")["version"].split("."))) >= (0, 13, 4)
    assert [one["name"] for one in get("/api/tags")["models"]] == ["a", "b"]
    (loaded,) = get("/api/ps")["models"]
    assert (loaded["name"], loaded["size_vram"]) == ("a", 0)
    assert datetime.fromisoformat(loaded["expires_at"]) > datetime.now(UTC)
    for name, length in (("a", 512), ("b", 77)):
        shown = post(two, "/api/show", {"model": name})
        assert {"completion", "tools"} <= {*shown["capabilities"]}
        (found,) = [v for k, v in shown["model_info"].items() if k.endswith(".context_length")]
        assert found == length
    for name, verbose, most in (("a", True, 49152), ("a", False, 0), ("b", True, 0)):
        facts = post(two, "/api/show", {"model": name, "verbose": verbose})["model_info"]
        assert len(facts.get("tokenizer.ggml.tokens", ())) == most
    listed = get("/v1/models")
    assert [one["meta"]["n_ctx"] for one in listed["data"]] == [512, 77]
    assert [one["max_model_len"] for one in listed["data"]] == [512, 77]
    assert [one["name"] for one in listed["models"]] == ["a", "b"]
    assert [one["max_context_length"] for one in get("/api/v0/models")["data"]] == [512, 77]
    caps = get("/props?model=a")["chat_template_caps"]
    assert caps["supports_tools"]
    assert caps["supports_tool_calls"]
    missing = httpx.post(f"{two}/api/show", json={"model": "c"})
    assert missing.status_code == 404
    assert "not served" in missing.json()["error"]


def test_zed_reads_the_list_and_its_second_turn_is_answered(url):
    """Zed was not run: names and nulls are those of its `crates/ollama`, whose types refuse a list with one missing."""
    for one in httpx.get(f"{url}/api/tags", timeout=60).json()["models"]:
        assert {type(one[name]) for name in ("name", "modified_at", "digest")} == {str}
        assert one["size"] >= 0
        texts = ("format", "family", "parameter_size", "quantization_level")
        assert {type(one["details"][name]) for name in texts} == {str}
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    asked = {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            *({**said, "role": "user"} for said in ASKED),
            {"role": "assistant", "content": "", "tool_calls": [call], "thinking": None},
            {"role": "tool", "tool_name": "weather", "content": "12"},
            {"role": "assistant", "content": "12", "tool_calls": [], "thinking": None},
            {"role": "user", "content": "Thanks."},
        ],
        "stream": True,
        "keep_alive": -1,
        "options": {
            "num_ctx": 512,
            "num_predict": None,
            "stop": [],
            "temperature": 1.0,
            "top_p": None,
        },
        "think": False,
        "tools": [WEATHER],
    }
    *parts, last = lines(url, "/api/chat", asked)
    assert all(one["message"]["role"] == "assistant" for one in (*parts, last))
    assert [one["done"] for one in (*parts, last)] == [False] * len(parts) + [True]
    assert last["prompt_eval_count"] > 0


def test_documents_are_ordered_by_a_query(llm):
    documents = ["Paris is the capital of France.", {"text": "Bread is baked."}, "Cats sleep."]
    body = {"query": "What is the capital of France?", "documents": documents}
    for settings in ({}, {"embeddings": True}, {"embeddings": True, "pooling": "mean"}):
        with running(lambda: llm, **settings) as (url, _):
            found = post(url, "/v1/rerank", body | {"return_documents": True})
            scores = [one["relevance_score"] for one in found["results"]]
            assert scores == sorted(scores, reverse=True)
            assert {one["index"] for one in found["results"]} == {0, 1, 2}
            for one in found["results"]:
                text = documents[one["index"]]
                assert one["document"]["text"] == (text if isinstance(text, str) else text["text"])
            assert found["usage"]["total_tokens"] > 20
            (best,) = post(url, "/rerank", body | {"top_n": 1})["results"]
            assert best["index"] == found["results"][0]["index"]
            tei = {"query": body["query"], "texts": ["Bread.", "Paris."]}
            assert {one["index"] for one in post(url, "/rerank", tei)} == {0, 1}


def test_vectors_are_those_of_the_other_route(llm):
    with running(lambda: llm, embeddings=True) as (url, _):
        found = post(url, "/api/embed", {"model": "tiny", "input": ["a b", "c"]})["embeddings"]
        other = post(url, "/v1/embeddings", {"input": ["a b", "c"]})["data"]
    assert found == [one["embedding"] for one in other]


def test_a_causal_score_is_that_of_yes_against_no(llm):
    with running(lambda: llm) as (url, _):
        body = {"query": "Is it?", "documents": ["It is."]}
        (result,) = post(url, "/v1/rerank", body)["results"]
    asked = (
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: Is it?\n<Document>: It is."
    )
    system = (
        "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "yes" or "no".'
    )
    turns = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
    prompt = llm.encode(turns)
    yes, no = (llm.tokenizer.encode(word, bos=False)[0] for word in ("yes", "no"))
    odds = {}
    for token in (yes, no):
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        (output,) = llm.generate([[*prompt, token]], params)
        odds[token] = output.prompt_logprobs[-1][token].logprob
    assert result["relevance_score"] == pytest.approx(
        1 / (1 + math.exp(odds[no] - odds[yes])), rel=1e-4
    )
