"""`/api/pull` fetches what the operator lets clients fetch, and says how far it is, as Ollama's does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from forerun.hub import shortnames
from forerun.hub.shortnames import ShortName
from forerun.server import pull
from forerun.server.models import ModelSource
from tests.hub import fake
from tests.hub.fake import FILES, running_hub
from tests.server.conftest import post, running, running_models

LARGE = "org/large-GGUF:Q4_K_M"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the hub's client, which asks a server of ours."""
    with running_hub() as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield tmp_path / "hub"


def pulled(url: str, name: str, **headers: str) -> list[dict]:
    answer = httpx.post(f"{url}/api/pull", json={"model": name}, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def blobs(hub: Path) -> list[Path]:
    return [*hub.glob("models--org--large-GGUF/blobs/*")]


def test_a_model_of_the_hub_comes_with_its_progress(llm, hub: Path):
    with running(lambda: llm, allow_pull=True) as (url, _):
        states = pulled(url, LARGE)
        told = [one for one in states if "total" in one]
        nbytes = len(FILES["org/large-GGUF"]["m-Q4_K_M.gguf"])
        assert {one["total"] for one in told} == {nbytes}
        assert len({one["digest"] for one in told}) == 1
        assert told[0]["digest"].startswith("sha256:")
        assert told[0]["status"] == f"pulling {told[0]['digest'][7:19]}"
        done = [one["completed"] for one in told]
        assert done == sorted(done)
        assert len(done) > 2
        assert done[-1] == nbytes
        assert [states[0], states[-1]] == [{"status": "pulling manifest"}, {"status": "success"}]
        assert any("forerun serve" in one["status"] for one in states)
        assert [path.stat().st_size for path in blobs(hub)] == [nbytes]
        asked = {"name": f"hf.co/{LARGE}", "stream": False, "insecure": False}
        assert post(url, "/api/pull", asked) == {"status": "success"}


@pytest.mark.usefixtures("hub")
def test_what_the_hub_does_not_have_is_an_error(llm):
    with running(lambda: llm, allow_pull=True) as (url, _):
        assert "does not give 'org/none'" in pulled(url, "org/none:Q4_K_M")[-1]["error"]
        asked = {"model": "org/model-GGUF:Q5_K_M", "stream": False}
        assert "has no Q5_K_M, but model-Q4_K_M" in post(url, "/api/pull", asked, 500)["error"]


@pytest.mark.parametrize("name", ["org/\0", "org/" + "a" * 200_000])
@pytest.mark.parametrize("stream", [False, True])
def test_a_name_that_no_process_can_be_given_is_refused(llm, name: str, stream: bool):
    with running(lambda: llm, allow_pull=True) as (url, _):
        answer = post(url, "/api/pull", {"model": name, "stream": stream}, 400)
    assert "printable" in answer["error"]


def test_a_stranger_fetches_nothing(llm, hub: Path):
    with running(lambda: llm) as (url, _):
        for stream in (True, False):
            refused = post(url, "/api/pull", {"model": LARGE, "stream": stream}, 403)["error"]
            assert "--allow-pull" in refused
            assert "--api-key-file" in refused
            assert f"forerun pull {LARGE}" in refused
    assert blobs(hub) == []


def test_who_has_the_key_may_fetch(llm, hub: Path):
    with running(lambda: llm, api_key="secret") as (url, _):
        assert httpx.post(f"{url}/api/pull", json={"model": LARGE}).status_code == 401
        assert pulled(url, LARGE, authorization="Bearer secret")[-1] == {"status": "success"}
    assert len(blobs(hub)) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_download(llm, hub: Path, monkeypatch, stream: bool):
    body = {"model": LARGE, "stream": stream}
    with running(lambda: llm, allow_pull=True) as (url, _):
        monkeypatch.setattr(fake, "SLOW_S", 60)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/api/pull", json=body, timeout=3)
        assert all(path.name.endswith(".incomplete") for path in blobs(hub))
        monkeypatch.setattr(fake, "SLOW_S", 0)
        assert pulled(url, LARGE)[-1] == {"status": "success"}, "another one has its turn"


@pytest.mark.usefixtures("hub")
def test_what_is_served_is_here_already(llm):
    sources = [ModelSource(LARGE, lambda: llm), ModelSource("b", lambda: llm, max_len=lambda: 77)]
    with running_models(sources) as (url, _):
        assert pulled(url, LARGE) == [{"status": "pulling manifest"}, {"status": "success"}]
        assert post(url, "/api/pull", {"name": "b:latest", "stream": False}) == {
            "status": "success"
        }
        post(url, "/api/pull", {"model": "c"}, 404)
    with running(lambda: llm, strict_model_name=False) as (url, _):
        assert pulled(url, "llama3.2")[-1] == {"status": "success"}, "one answers to any name"


def test_a_short_name_is_fetched_only_where_clients_may(
    llm, hub: Path, monkeypatch: pytest.MonkeyPatch
):
    tiny = ShortName(("few:1b",), LARGE, "m-Q4_K_M.gguf", 0.1, "MIT", "page")
    monkeypatch.setattr(shortnames, "_by_name", lambda: {"few:1b": tiny})
    asked: list[str] = []
    started = pull._started
    monkeypatch.setattr(pull, "_started", lambda name: asked.append(name) or started(LARGE))
    with running(lambda: llm, allow_pull=True) as (url, _):
        assert pulled(url, "few:1b")[-1] == {"status": "success"}
        assert asked == ["few:1b"]
        assert len(blobs(hub)) == 1
    with running(lambda: llm) as (url, _):
        assert "is not served here" in post(url, "/api/pull", {"model": "few:1b"}, 404)["error"]
    assert asked == ["few:1b"]
