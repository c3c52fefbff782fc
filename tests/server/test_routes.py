"""The routes beside the answers: tokens, metrics, models, the document of the API."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forerun.core.errors import ConfigError
from forerun.server import pull
from forerun.server.api import ollama, ollama_models
from forerun.server.app import new_app
from forerun.server.config import ServerConfig
from forerun.server.http import to_json
from forerun.server.models import ServedModels
from tests.server import test_fields_fuzz
from tests.server.conftest import chunks, post, running

BODY = {"prompt": "One two three one two three one", "max_tokens": 8, "temperature": 0}


def test_texts_become_tokens_and_tokens_texts(url, llm):
    ids = llm.tokenizer.encode("Hello, world")
    ours = post(url, "/tokenize", {"prompt": "Hello, world", "return_token_strs": True})
    assert ours == {
        "count": len(ids),
        "max_model_len": 512,
        "tokens": ids,
        "token_strs": [llm.tokenizer.text_of(token) for token in ids],
    }
    pieces = post(url, "/tokenize", {"content": "Hello, world", "with_pieces": True})["tokens"]
    assert "".join(one["piece"] for one in pieces) == "Hello, world"
    back = post(url, "/detokenize", {"tokens": ids})
    assert back == {"prompt": "Hello, world", "content": "Hello, world"}
    messages = [{"role": "user", "content": "Hi"}]
    chat = post(url, "/tokenize", {"messages": messages})
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
    answer = post(url, "/v1/completions", BODY)
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
    phases = ("queue", "prefill", "decode", "inference")
    spent = {each: grown(f"request_{each}_time_seconds_sum") for each in phases}
    assert min(spent.values()) > 0
    assert spent["prefill"] + spent["decode"] == pytest.approx(spent["inference"])
    whole = grown("e2e_request_latency_seconds_sum")
    assert spent["queue"] + spent["inference"] <= whole + 1e-6
    assert grown("request_generation_tokens_sum") == 8
    each = grown("request_time_per_output_token_seconds_sum")
    assert each == pytest.approx(spent["decode"] / 7)
    assert grown("request_max_num_generation_tokens_sum") == 8
    assert (grown("request_params_n_sum"), grown("request_params_max_tokens_sum")) == (1, 8)
    refused = ("http_requests_total", ("method", "POST"), ("status", "400"))
    count = after.get(refused, 0)
    assert httpx.post(f"{url}/v1/completions", json=BODY | {"n": 0}).status_code == 400
    assert read()[refused] == count + 1
    assert value(after, "num_requests_running") == 0


def test_the_document_of_the_api_names_every_field(paths, components):
    assert {"/v1/completions", "/v1/chat/completions", "/health"} <= paths.keys()
    body = paths["/v1/chat/completions"]["post"]["requestBody"]
    assert body["required"]
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    fields = components["schemas"][name]["properties"]
    assert {"messages", "temperature", "top_k", "ignore_eos"} <= fields.keys()
    assert fields["stream_options"]["anyOf"][0]["$ref"].endswith("/StreamOptions")
    assert "include_usage" in components["schemas"]["StreamOptions"]["properties"]


def test_a_field_that_may_be_left_out_may_be_null(url, components):
    fields = components["schemas"]["TokenizeRequest"]["properties"]
    assert all({"type": "null"} in field["anyOf"] for field in fields.values())
    body = dict.fromkeys(fields) | {"prompt": "Hi"}
    assert httpx.post(f"{url}/tokenize", json=body).status_code == 200


ASKED = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
TRIED = [
    ("/v1/completions", BODY, 200),
    ("/v1/completions", BODY | {"n": 0}, 400),
    ("/v1/chat/completions", ASKED, 200),
    ("/v1/chat/completions", ASKED | {"model": "other"}, 404),
    ("/v1/chat/completions", ASKED | {"messages": [{"role": 5, "content": "Hi"}]}, 400),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 4}, 200),
    ("/v1/responses", {"input": 1}, 400),
    ("/v1/messages", ASKED, 200),
    ("/v1/messages", ASKED | {"model": "other"}, 404),
    ("/v1/messages", {}, 400),
    ("/v1/messages/count_tokens", {"messages": ASKED["messages"]}, 200),
    ("/v1/messages/count_tokens", {"messages": []}, 400),
    ("/v1/chat/completions/input_tokens", {"messages": ASKED["messages"]}, 200),
    ("/v1/embeddings", {"input": "Hi"}, 501),
    ("/embedding", {"content": "Hi"}, 501),
    ("/v1/rerank", {"query": "Hi", "documents": ["a", "b"]}, 200),
    ("/v1/rerank", {"query": "Hi", "documents": []}, 400),
    ("/completion", BODY, 200),
    ("/completion", BODY | {"prompt": ["Hi", [1, 2]], "n_predict": 2, "max_tokens": 2}, 200),
    ("/completion", BODY | {"prompt": {}}, 400),
    ("/completion", BODY | {"model": "other"}, 404),
    ("/infill", {"input_prefix": "a", "input_suffix": "b"}, 501),
    ("/apply-template", {"messages": ASKED["messages"]}, 200),
    ("/tokenize", {"prompt": "Hi"}, 200),
    ("/tokenize", {}, 400),
    ("/detokenize", {"tokens": [1]}, 200),
    ("/detokenize", {"tokens": [-1]}, 400),
    ("/mcp-rest/tools/list", None, 200),
    ("/mcp-rest/tools/call", {"server_id": "a", "name": "b"}, 501),
    ("/health", None, 200),
    ("/v1/models", None, 200),
    ("/v1/models/{name}", None, 404),
    ("/props", None, 200),
    ("/slots", None, 200),
    ("/metrics", None, 200),
    ("/version", None, 200),
]


@pytest.fixture(scope="module")
def document(url) -> dict:
    return httpx.get(f"{url}/openapi.json").json()


@pytest.fixture(scope="module")
def paths(document) -> dict:
    return document["paths"]


@pytest.fixture(scope="module")
def components(document) -> dict:
    return document["components"]


@pytest.mark.parametrize(("route", "body", "status"), TRIED)
def test_an_answer_is_one_that_the_document_states(url, paths, route, body, status):
    method = "GET" if body is None else "POST"
    answer = httpx.request(method, f"{url}{route}", json=body, timeout=60)
    assert answer.status_code == status
    content = paths[route][method.lower()]["responses"][str(status)]["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    found = answer.json() if kind == "application/json" else answer.text
    jsonschema.validate(found, content[kind]["schema"])


def test_the_document_tells_the_parameter_and_the_key(llm, paths):
    (name,) = paths["/v1/models/{name}"]["get"]["parameters"]
    assert (name["name"], name["in"], name["required"]) == ("name", "path", True)
    assert paths.keys() == {route for route, *_ in TRIED}
    with running(lambda: llm, api_key="secret") as (url, _):
        found = httpx.get(f"{url}/openapi.json", headers={"x-api-key": "secret"}).json()["paths"]
    assert "401" not in paths["/version"]["get"]["responses"]
    assert "401" in found["/version"]["get"]["responses"]
    assert "401" not in found["/health"]["get"]["responses"]


@pytest.mark.parametrize(
    ("message", "is_valid"),
    [
        ({"role": "user", "content": "Hi"}, True),
        ({"role": "user", "content": [{"type": "text", "text": "Hi"}]}, True),
        ({"role": "user"}, False),
        ({"content": "Hi"}, False),
        ({"role": "user", "content": 5}, False),
    ],
)
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages"])
def test_the_document_tells_what_a_message_is(url, paths, components, route, message, is_valid):
    content = paths[route]["post"]["requestBody"]["content"]
    schema = content["application/json"]["schema"] | {"components": components}
    body = {"messages": [message], "max_tokens": 1}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) == is_valid
    assert httpx.post(f"{url}{route}", json=body, timeout=60).is_success == is_valid


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_documented_line_of_curl_works(url):
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (lines,) = re.findall(r"^ +curl .*\\\n.*$", page, re.MULTILINE)
    command = ["sh", "-c", lines.replace("http://127.0.0.1:8000", url) + " -s"]
    out = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
    answer = json.loads(out)
    assert answer["choices"][0]["message"]["content"]
    assert 0 < answer["usage"]["completion_tokens"] <= 64


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_a_stream(url):
    kind = ("-H", "content-type: application/json")
    body = json.dumps(BODY | {"stream": True})
    command = ["curl", "-sN", f"{url}/v1/completions", *kind, "-d", body]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [line.removeprefix("data: ") for line in out.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    whole = post(url, "/v1/completions", BODY)
    assert text == whole["choices"][0]["text"]
    assert chunks[-1]["timings"]["predicted_n"] == 8


def test_what_comes_within_the_interval_is_one_chunk(llm):
    def streamed(interval: float) -> list[dict]:
        body = BODY | {"logprobs": 1, "return_token_ids": True, "n": 2}
        with running(lambda: llm, stream_interval=interval) as (url, _):
            return [
                one for chunk in chunks(url, "/v1/completions", body) for one in chunk["choices"]
            ]

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


VLLM_DASHBOARDS = {
    *(f"vllm:{name}" for name in ("num_requests_running", "num_requests_waiting")),
    *("vllm:kv_cache_usage_perc", "vllm:num_preemptions_total", "vllm:request_success_total"),
    *(f"vllm:{name}_tokens_total" for name in ("prompt", "generation")),
    *(f"vllm:prefix_cache_{name}_total" for name in ("queries", "hits")),
    *(f"vllm:spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens")),
    *(f"vllm:spec_decode_num_accepted_tokens{name}_total" for name in ("", "_per_pos")),
    *(
        f"vllm:{name}_{part}"
        for part in ("bucket", "sum", "count")
        for name in (
            *("time_to_first_token_seconds", "inter_token_latency_seconds"),
            *("e2e_request_latency_seconds", "request_time_per_output_token_seconds"),
            *(f"request_{it}_time_seconds" for it in ("queue", "prefill", "decode", "inference")),
            *(f"request_{it}_tokens" for it in ("prompt", "generation", "max_num_generation")),
            *("request_params_n", "request_params_max_tokens"),
        )
    ),
}
"""Series that vLLM's Grafana dashboards ask for, less those of pictures, adapters and several machines."""


def test_metrics_take_another_prefix(llm):
    with running(lambda: llm, metrics_prefix="vllm:") as (url, _):
        text = httpx.get(f"{url}/metrics").text
    names = set(re.findall(r"^vllm:\w+", text, re.MULTILINE))
    assert names >= VLLM_DASHBOARDS
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"}' in text
    assert "forerun:" not in text


@pytest.mark.parametrize("given", ["", "9x", "vllm ", "a\n"])
def test_a_prefix_that_prometheus_cannot_read_is_refused(given):
    with pytest.raises(ConfigError, match="metrics_prefix"):
        ServerConfig(metrics_prefix=given)


def test_every_route_with_a_body_is_fuzzed():
    paths = new_app(ServedModels([], ServerConfig())).openapi()["paths"]
    posted = {path for path, methods in paths.items() if "post" in methods}
    posted |= {
        route.path for module in (ollama, ollama_models, pull) for route in module.router.routes
    }
    assert posted == {*test_fields_fuzz.BODIES}


def test_pieces_that_are_no_text_are_bytes_and_marks_may_be_text(url, llm):
    body = {"content": "\U0001fae8", "with_pieces": True}
    pieces = [one["piece"] for one in post(url, "/tokenize", body)["tokens"]]
    assert len(pieces) > 1
    assert b"".join(bytes(one) for one in pieces).decode() == "\U0001fae8"
    mark = llm.tokenizer.text_of(llm.tokenizer.eos_id)
    counts = [
        post(url, "/tokenize", {"content": mark, "parse_special": given})["count"]
        for given in (True, False)
    ]
    assert counts[0] == 1 < counts[1]


@pytest.mark.parametrize("echo", [True, False])
def test_offsets_are_places_in_the_text(url, llm, echo):
    prompt = "A\U0001fae8 \U0001fae8B"
    form = {"regex": "\U0001fae8 \U0001fae8[a-z]{3}"}
    body = {"prompt": prompt, "structured_outputs": form, "logprobs": 0, "max_tokens": 30}
    (choice,) = post(url, "/v1/completions", body | {"echo": echo})["choices"]
    text, scored = choice["text"], choice["logprobs"]
    for start, token in zip(scored["text_offset"], scored["tokens"], strict=True):
        if "\ufffd" not in token:
            assert text[start:].startswith(token)
    assert scored["text_offset"][-1] < len(text)


def test_no_end_of_a_line_stands_in_json():
    letters = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"
    written = to_json({"a": f"x{letters}y\ud800", letters: [letters] * 5000})
    assert len(written.decode().splitlines()) == 1
    assert json.loads(written) == {"a": f"x{letters}y\ud800", letters: [letters] * 5000}
