"""Several models in one server: named by the request, loaded at first use, dropped where there is no room."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

pytest.importorskip("torch")

from prometheus_client.parser import text_string_to_metric_families

from forerun import LLM, SamplingParams
from forerun.core.errors import ConfigError, LoadError
from forerun.engine.memory import LATER_NBYTES, SERVER_NBYTES, together
from forerun.server.config import ServerConfig
from forerun.server.models import ModelSource, ServedModels
from forerun.system.device import process_nbytes
from tests.model.test_lying_files import honest
from tests.server.conftest import post, running_models, wait_until

NAMES = ("alpha", "beta", "gamma")
FAMILIES = dict(zip(NAMES, ("llama", "granite", "phi3"), strict=True))
PROMPT = "hello hello hello a b a b"
BODY = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
IDS = BODY | {"return_token_ids": True}
PROCESS = process_nbytes()
SHARED = PROCESS + LATER_NBYTES + SERVER_NBYTES
NBYTES = SHARED + 1000


class Loads:
    """Loads models, and remembers which; one whose gate is closed is not loaded before it opens."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, list[str]()
        self.gates = {name: threading.Event() for name in NAMES}
        self.errors: dict[str, Exception] = {}
        for gate in self.gates.values():
            gate.set()

    def sources(self, names: tuple[str, ...] = NAMES) -> list[ModelSource]:
        return [ModelSource(name, lambda name=name: self(name), lambda: NBYTES) for name in names]

    def __call__(self, name: str) -> LLM:
        self.names.append(name)
        assert self.gates[name].wait(20)
        if name in self.errors:
            raise self.errors[name]
        return loaded(self.folder, name)


def loaded(folder: Path, name: str, **settings: object) -> LLM:
    own = {"drafter": "prompt_lookup:ngram_min=1", "controller": False, "max_num_seqs": 2}
    return LLM(str(folder / f"{name}.gguf"), **{**own, **settings})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for name, family in FAMILIES.items():
        (path / f"{name}.gguf").write_bytes(
            honest(family, hidden_size=64, intermediate_size=96).to_bytes()
        )
    return path


@pytest.fixture(scope="module")
def offline(folder: Path) -> dict[str, list[int]]:
    """The tokens of each model, decoded plainly and alone."""
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    plain = {name: loaded(folder, name, drafter="none") for name in NAMES}
    found = {name: llm.generate(PROMPT, params)[0].outputs[0] for name, llm in plain.items()}
    assert len({one.token_ids for one in found.values()}) == len(NAMES)
    return {name: [*one.token_ids] for name, one in found.items()}


@pytest.fixture
def loads(folder: Path) -> Loads:
    return Loads(folder)


@pytest.fixture
def served(loads: Loads) -> Iterator[tuple[str, ServedModels]]:
    with running_models(loads.sources()) as found:
        yield found


def ask(url: str, name: str | None, status: int = 200, **others: object) -> dict:
    body = IDS | others | ({} if name is None else {"model": name})
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def tokens(answer: dict) -> list[int]:
    return answer["choices"][0]["token_ids"]


def states(url: str) -> dict[str, str]:
    data = httpx.get(f"{url}/v1/models").json()["data"]
    return {one["id"]: one["status"]["value"] for one in data}


def test_a_model_is_loaded_when_a_request_first_names_it(served, loads, offline) -> None:
    """And its tokens are those that it has offline, with drafts that were accepted and others that were not."""
    url, _ = served
    assert loads.names == ["alpha"]
    assert states(url) == {"alpha": "loaded", "beta": "unloaded", "gamma": "unloaded"}
    for name in ("alpha", "beta", "beta", "alpha", "gamma"):
        found = ask(url, name)
        assert found["model"] == name
        assert tokens(found) == offline[name]
        figures = found["timings"]
        assert 0 < figures["draft_n_accepted"] < figures["draft_n"]
    assert loads.names == [*NAMES]
    assert set(states(url).values()) == {"loaded"}
    assert httpx.get(f"{url}/v1/models/beta").json()["max_model_len"] == 512
    assert tokens(ask(url, None)) == offline["alpha"]


def test_first_requests_at_once_load_a_model_once(served, loads, offline) -> None:
    url, _ = served
    loads.gates["beta"].clear()
    with ThreadPoolExecutor(6) as pool:
        found = [pool.submit(ask, url, "beta") for _ in range(6)]
        wait_until(lambda: states(url)["beta"] == "loading")
        loads.gates["beta"].set()
        assert {tuple(tokens(one.result())) for one in found} == {tuple(offline["beta"])}
    assert loads.names == ["alpha", "beta"]


def test_who_was_not_used_for_longest_goes_where_a_budget_is_short(loads, offline) -> None:
    with running_models(loads.sources(), budget=together([NBYTES] * 2, PROCESS)) as (url, _):
        for name in ("alpha", "beta", "alpha", "gamma"):
            assert tokens(ask(url, name)) == offline[name]
        assert states(url) == {"alpha": "loaded", "beta": "unloaded", "gamma": "loaded"}
        assert httpx.get(f"{url}/v1/models/beta").json()["max_model_len"] == 512
        assert tokens(ask(url, "beta")) == offline["beta"]
        assert states(url)["alpha"] == "unloaded"
    assert loads.names == [*NAMES, "beta"]


def test_a_budget_has_what_all_models_share_once() -> None:
    assert together([NBYTES] * 3, PROCESS) == SHARED + 3000
    assert together([], PROCESS) == 0


def test_a_model_is_let_go_of_by_route_and_comes_back_when_asked(served, loads, offline) -> None:
    """By llama-server's route and by Ollama's `keep_alive`; what works is kept."""
    url, _ = served
    long = BODY | {"max_tokens": 400, "model": "alpha", "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=long, timeout=60) as answer:
        found = answer.iter_lines()
        next(found)
        assert post(url, "/models/unload", {"model": "alpha"}) == {"success": False}
        kept = {"model": "alpha", "keep_alive": 0, "stream": False}
        assert post(url, "/api/generate", kept)["done_reason"] == "load"
        assert any('"finish_reason":"length"' in line for line in found)
    wait_until(lambda: post(url, "/models/unload", {"model": "alpha"}) == {"success": True})
    assert post(url, "/models/unload", {"model": "alpha"}) == {"success": True}, "it is gone"
    assert httpx.get(f"{url}/api/ps").json() == {"models": []}
    post(url, "/models/unload", {"model": "delta"}, 404)
    assert httpx.get(f"{url}/health").status_code == 200
    assert tokens(ask(url, "alpha")) == offline["alpha"]
    for keep in (0, "0s"):
        gone = post(url, "/api/chat", {"model": "alpha", "messages": [], "keep_alive": keep})
        assert gone["done_reason"] == "unload"
        assert states(url)["alpha"] == "unloaded"
        assert tokens(ask(url, "alpha")) == offline["alpha"]
    assert loads.names == ["alpha"] * 4


def test_a_running_stream_outlives_the_wish_for_another_model(loads, offline) -> None:
    """The other one waits until it has ended, and is loaded then."""
    long = BODY | {"max_tokens": 400, "n": 6, "model": "alpha", "stream": True, "temperature": 1}
    with (
        running_models(loads.sources(), models_max=1) as (url, served),
        ThreadPoolExecutor(1) as pool,
    ):
        with httpx.stream("POST", f"{url}/v1/completions", json=long, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            other = pool.submit(ask, url, "beta")
            wait_until(lambda: served._loads)
            assert (
                tokens(ask(url, "alpha")) == offline["alpha"]
            )  # waiting requests do not block others
            assert not other.done()
            ends = [line for line in lines if '"finish_reason":"length"' in line]
        assert len(ends) == 6
        assert tokens(other.result()) == offline["beta"]
        assert states(url) == {"alpha": "unloaded", "beta": "loaded", "gamma": "unloaded"}
    assert loads.names == ["alpha", "beta"]


def test_a_request_waits_for_its_model_only_so_long(loads, offline) -> None:
    loads.gates["beta"].clear()
    with running_models(loads.sources(), load_timeout=0.2) as (url, _):
        body = IDS | {"model": "beta"}
        answer = httpx.post(f"{url}/v1/completions", json=body)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "--load-timeout" in answer.json()["error"]["message"]
        assert tokens(ask(url, "alpha")) == offline["alpha"]
        assert httpx.get(f"{url}/health").status_code == 200
        loads.gates["beta"].set()
        wait_until(lambda: states(url)["beta"] == "loaded")
        assert tokens(ask(url, "beta")) == offline["beta"]
    assert loads.names == ["alpha", "beta"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LoadError, "the model beta cannot be loaded: /models/beta.gguf ends early"),
        (RuntimeError, "the model beta cannot be loaded: RuntimeError; see the server's log"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_an_answer_not_the_end(
    served, loads, offline, error, said
) -> None:
    url, _ = served
    loads.errors["beta"] = error("/models/beta.gguf ends early")
    assert ask(url, "beta", 500)["error"]["message"] == said
    assert tokens(ask(url, "alpha")) == offline["alpha"]
    loads.errors.clear()
    assert tokens(ask(url, "beta")) == offline["beta"]


def test_without_its_first_model_there_is_no_server(loads) -> None:
    loads.errors["alpha"] = LoadError("alpha.gguf ends early")
    with running_models(loads.sources(), wait=False) as (_, served):
        wait_until(lambda: served.error is not None)
        assert str(served.error) == "alpha.gguf ends early"


def test_until_the_first_model_is_loaded_nothing_is_ready(loads) -> None:
    loads.gates["alpha"].clear()
    with running_models(loads.sources(), wait=False) as (url, _):
        for route in ("health", "v1/models", "metrics"):
            assert httpx.get(f"{url}/{route}").status_code == 503
        loads.gates["alpha"].set()
        assert tokens(ask(url, "alpha"))


POSTS = {
    "/v1/completions": BODY,
    "/v1/chat/completions": {"messages": []},
    "/v1/chat/completions/input_tokens": {"messages": []},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": [], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": []},
    "/v1/embeddings": {"input": "a"},
    "/embedding": {"content": "a"},
    "/completion": {"prompt": "a"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/apply-template": {"messages": []},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [1]},
}


def test_a_name_that_no_model_has_is_not_found_on_any_route(served, loads) -> None:
    url, _ = served
    for route, body in POSTS.items():
        answer = httpx.post(f"{url}{route}", json=body | {"model": "delta"})
        assert answer.status_code == 404, (route, answer.text)
        message = answer.json()["error"]["message"]
        assert message == "the model 'delta' is not served here (served: alpha, beta, gamma)"
        wrong = httpx.post(f"{url}{route}", json=body | {"model": 5})
        assert wrong.status_code == 400
    for route in ("props?model=delta", "slots?model=delta", "v1/models/delta"):
        assert httpx.get(f"{url}/{route}").status_code == 404
    assert loads.names == ["alpha"]


def test_every_route_is_of_the_model_that_is_named(loads, folder) -> None:
    with running_models(loads.sources(NAMES[:2]), embeddings=True) as (url, _):

        def post(route: str, **body: object) -> object:
            answer = httpx.post(f"{url}{route}", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        vectors = [
            post("/v1/embeddings", input="a b", model=name)["data"] for name in ("alpha", "beta")
        ]
        assert vectors[0] != vectors[1]
        assert loads.names == ["alpha", "beta"]
        for name in ("alpha", "beta"):
            assert post("/completion", prompt=PROMPT, n_predict=4, model=name)["model"] == name
            assert post("/tokenize", content="a b", model=name)["count"] == 3
            found = httpx.get(f"{url}/props", params={"model": name}).json()
            assert (found["model_alias"], found["model_path"]) == (name, f"{name}.gguf")
            assert len(httpx.get(f"{url}/slots", params={"model": name}).json()) == 2


def test_what_is_counted_is_told_by_model(served) -> None:
    url, _ = served
    for name in ("alpha", "beta", "beta"):
        ask(url, name)
    text = httpx.get(f"{url}/metrics").text
    found = {
        (one.name, one.labels.get("model_name")): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len({*families})
    for name, count in (("alpha", 1), ("beta", 2)):
        assert found["forerun:generation_tokens_total", name] == 40 * count
        assert found["forerun:e2e_request_latency_seconds_count", name] == count
    assert ("forerun:generation_tokens_total", "gamma") not in found


def test_the_access_log_names_the_model(loads, caplog) -> None:
    with running_models(loads.sources(NAMES[:2]), log_requests=True) as (url, _):
        ask(url, "beta")
        httpx.get(f"{url}/health")
    lines = [one.getMessage() for one in caplog.records if one.name == "forerun.requests"]
    asked = next(line for line in lines if "/v1/completions" in line)
    assert ", model beta, prompt " in asked
    assert "model" not in next(line for line in lines if "/health" in line)


def test_who_waits_for_a_model_when_the_server_ends_is_told(loads) -> None:
    loads.gates["beta"].clear()
    with ThreadPoolExecutor(1) as pool:
        with running_models(loads.sources(), drain_timeout=0.2) as (url, _):
            waiting = pool.submit(ask, url, "beta", 503)
            wait_until(lambda: states(url)["beta"] == "loading")
        assert "shutting down" in waiting.result()["error"]["message"]
    loads.gates["beta"].set()


@pytest.mark.parametrize(
    ("models", "given", "message"),
    [
        (("a/x.gguf", "b/x.gguf"), (), "2 models are called x: give each its own name"),
        (("a/x.gguf", "b/y.gguf"), ("one",), "one name for each of 2 models, .* got 1: one"),
        (("a/x.gguf", "b/y.gguf"), ("one", "one"), "2 models are called one"),
    ],
)
def test_names_that_do_not_tell_models_apart_are_refused(tmp_path, models, given, message) -> None:
    for model in models:
        (tmp_path / model).parent.mkdir(exist_ok=True)
        (tmp_path / model).touch()
    sources = [ModelSource(str(tmp_path / model), LLM) for model in models]
    with pytest.raises(ConfigError, match=message):
        ServedModels(sources, ServerConfig(served_model_name=given))
    named = ServedModels(sources, ServerConfig(served_model_name=("one,two",)))
    assert json.dumps([one.names for one in named.services]) == '[["one"], ["two"]]'


SAID = [{"role": "user", "content": "a"}]
WRONG = [
    ("/v1/completions", {"prompt": {}}),
    ("/v1/completions", {"prompt": "a", "temperature": 101}),
    ("/v1/chat/completions", {"messages": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "wizard", "content": "a"}]}),
    ("/v1/chat/completions", {"messages": SAID, "thinking": {"type": "often"}}),
    ("/v1/chat/completions", {"messages": SAID, "tools": [{"type": "function"}]}),
    ("/v1/chat/completions", {"messages": SAID, "response_format": {"type": "xml"}}),
    ("/v1/responses", {"input": [{"type": "picture"}]}),
    ("/v1/responses", {"input": "a", "conversation": "conv_1"}),
    ("/v1/messages", {"messages": SAID, "max_tokens": "many"}),
    ("/v1/messages", {"messages": [{"role": "narrator", "content": "a"}], "max_tokens": 1}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "narrator", "content": "a"}]}),
    ("/completion", {"prompt": "a", "n_predict": "many"}),
    ("/infill", {"input_prefix": 1}),
    ("/tokenize", {"prompt": 1}),
    ("/detokenize", {"tokens": "a"}),
    ("/apply-template", {"messages": 1}),
    ("/v1/embeddings", {"input": "a", "dimensions": "many"}),
    ("/v1/rerank", {"query": 1}),
    ("/api/chat", {"messages": SAID, "format": "yaml"}),
    ("/api/generate", {"prompt": "a", "options": {"temperature": 101}}),
    ("/completion", {"prompt": "a", "temperature": 101}),
    ("/tokenize", {"prompt": "a", "content": "b"}),
    ("/v1/rerank", {"query": "a", "documents": [1]}),
    ("/v1/rerank", {"query": "a", "documents": ["a"] * 2049}),
]


def test_a_body_that_is_wrong_loads_no_model_and_drops_none(loads) -> None:
    with running_models(loads.sources(), models_max=1) as (url, _):
        for route, body in WRONG:
            answer = httpx.post(f"{url}{route}", json=body | {"model": "beta"}, timeout=20)
            assert answer.status_code == 400, (route, answer.text)
        assert states(url) == {"alpha": "loaded", "beta": "unloaded", "gamma": "unloaded"}
    assert loads.names == ["alpha"]
