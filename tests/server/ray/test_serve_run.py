"""`serve run` with a config file: Ray's own proxy, a gateway as a deployment, replicas behind it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from tests.server.conftest import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def url(default_model, tmp_path_factory) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    application = {
        "name": "forerun",
        "route_prefix": "/",
        "import_path": "forerun.server.ray:app",
        "args": {
            "model": str(default_model),
            "replicas": 1,
            "max_replicas": 2,
            "cpus": 0.5,
            "engine": {"max_model_len": 512},
            "server": {"served_model_name": ["tiny"], "api_key": "secret"},
        },
    }
    config = tmp_path_factory.mktemp("serve") / "config.json"
    options = {"host": "127.0.0.1", "port": port}
    config.write_text(json.dumps({"http_options": options, "applications": [application]}))
    command = [sys.executable, "-m", "ray.serve.scripts", "run", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as server:
        try:
            address = f"http://127.0.0.1:{port}"

            def is_ready() -> bool:
                assert server.poll() is None
                with suppress(httpx.HTTPError):
                    return httpx.get(f"{address}/health").status_code == 200
                return False

            wait_until(is_ready, 120)
            yield address
        finally:
            server.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                server.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


KEY = {"authorization": "Bearer secret"}
BODY = {
    "messages": [{"role": "user", "content": "Name three rivers."}],
    "max_tokens": 24,
    "temperature": 0,
}


def test_streams_pass_rays_proxy(url):
    whole = httpx.post(f"{url}/v1/chat/completions", json=BODY, headers=KEY, timeout=60)
    assert whole.status_code == 200
    assert whole.headers["x-forerun-replica"]
    body, text, parts = BODY | {"stream": True}, "", 0
    request = httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=KEY, timeout=60)
    with request as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                parts += 1
                (choice,) = json.loads(line[6:])["choices"]
                text += choice["delta"].get("content") or ""
    assert parts > 1
    assert text == whole.json()["choices"][0]["message"]["content"]


def test_the_key_and_the_name_are_those_of_the_arguments(url):
    assert httpx.post(f"{url}/v1/chat/completions", json=BODY).status_code == 401
    models = httpx.get(f"{url}/v1/models", headers=KEY).json()["data"]
    assert [one["id"] for one in models] == ["tiny"]
    assert "forerun:replicas 1.0" in httpx.get(f"{url}/metrics", headers=KEY).text


@pytest.mark.filterwarnings("ignore")  # Ray's own, when it is imported
def test_arguments_that_are_wrong_are_refused():
    from pydantic import ValidationError

    from forerun.core.errors import ConfigError
    from forerun.server.ray.deploy import AppArgs, app

    with pytest.raises(ValidationError, match="replica"):
        AppArgs(replica=3)
    with pytest.raises(ConfigError, match="no such option"):
        app(AppArgs(engine={"thread": 3}))
    with pytest.raises(ConfigError, match="max_replicas must be at least replicas"):
        app(AppArgs(replicas=3, max_replicas=2))
