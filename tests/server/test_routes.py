"""The routes beside the answers: tokens, metrics, models, the document of the API."""

from __future__ import annotations

import json
import shutil
import subprocess

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import running

BODY = {"prompt": "One two three one two three one", "max_tokens": 8, "temperature": 0}


def test_texts_become_tokens_and_tokens_texts(url, llm):
    ids = llm.tokenizer.encode("Hello, world")
    ours = httpx.post(
        f"{url}/tokenize", json={"prompt": "Hello, world", "return_token_strs": True}
    ).json()
    assert ours == {
        "count": len(ids),
        "max_model_len": 512,
        "tokens": ids,
        "token_strs": [llm.tokenizer.text_of(token) for token in ids],
    }
    pieces = httpx.post(
        f"{url}/tokenize", json={"content": "Hello, world", "with_pieces": True}
    ).json()["tokens"]
    assert "".join(one["piece"] for one in pieces) == "Hello, world"
    back = httpx.post(f"{url}/detokenize", json={"tokens": ids}).json()
    assert back == {"prompt": "Hello, world", "content": "Hello, world"}
    messages = [{"role": "user", "content": "Hi"}]
    chat = httpx.post(f"{url}/tokenize", json={"messages": messages}).json()
    assert chat["tokens"] == llm.encode(messages)


def test_metrics_have_the_names_of_vllm(url):
    def read():
        text = httpx.get(f"{url}/metrics").text
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(found, name, **more):
        labels = {"model_name": "tiny", "engine": "0", **more}
        return found.get((f"forerun:{name}", *sorted(labels.items())), 0)

    before = read()
    answer = httpx.post(f"{url}/v1/completions", json=BODY | {"stream": False}, timeout=60).json()
    after = read()

    def grown(name, **more):
        return value(after, name, **more) - value(before, name, **more)

    usage, timings = answer["usage"], answer["timings"]
    assert grown("prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("generation_tokens_total") == 8
    assert grown("request_success_total", finished_reason="length") == 1
    assert grown("spec_decode_num_draft_tokens_total") == timings["draft_n"] > 0
    assert grown("spec_decode_num_accepted_tokens_total") == timings["draft_n_accepted"] > 0
    assert grown("spec_decode_num_drafts_total") > 0
    assert grown("spec_decode_num_accepted_tokens_per_pos_total", position="0") > 0
    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("inter_token_latency_seconds_count") == 7
    assert grown("e2e_request_latency_seconds_count") == 1
    assert grown("request_generation_tokens_sum") == 8
    assert value(after, "num_requests_running") == 0


def test_the_document_of_the_api_names_every_field(url):
    document = httpx.get(f"{url}/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/health"} <= document["paths"].keys()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert {"messages", "temperature", "top_k", "ignore_eos"} <= schema["properties"].keys()
    assert "include_usage" in json.dumps(schema["properties"]["stream_options"])
    assert "$ref" not in json.dumps(document["paths"])


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_a_stream(url):
    command = ["curl", "-sN", f"{url}/v1/completions", "-d", json.dumps(BODY | {"stream": True})]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [line.removeprefix("data: ") for line in out.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    whole = httpx.post(f"{url}/v1/completions", json=BODY, timeout=60).json()
    assert text == whole["choices"][0]["text"]
    assert chunks[-1]["timings"]["predicted_n"] == 8


def test_what_comes_within_the_interval_is_one_chunk(llm):
    def streamed(interval: float) -> list[dict]:
        body = BODY | {"stream": True, "logprobs": 1, "return_token_ids": True, "n": 2}
        with running(lambda: llm, stream_interval=interval) as (url, _):
            text = httpx.post(f"{url}/v1/completions", json=body, timeout=60).text
        lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        return [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]

    def together(choices: list[dict], index: int) -> tuple:
        own = [one for one in choices if one["index"] == index]
        scores = [value for one in own for value in one["logprobs"]["token_logprobs"]]
        starts = [start for one in own for start in one["logprobs"]["text_offset"]]
        ids = [token for one in own for token in one["token_ids"]]
        return "".join(one["text"] for one in own), ids, scores, starts, own[-1]["finish_reason"]

    each, joined = streamed(0), streamed(60)
    assert len(joined) == 4  # the first tokens at once, the others at the end
    assert len(each) > len(joined)
    assert [together(each, i) for i in range(2)] == [together(joined, i) for i in range(2)]
