"""`forerun launch`: a client is told of the server, started, and what was in its configuration is kept."""

from __future__ import annotations

import json
import stat
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from forerun.cli.clients import BACKUP, CLIENTS
from forerun.core.errors import ConfigError
from forerun.model.kernels import native
from forerun.server import instructions

PROGRAM = """#!/bin/sh
{ echo "$0 $*"; env | grep -E '^(ANTHROPIC|OPENAI)_'; } >> "$SAID"
exit ${CODE:-0}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with all clients, which write down how they were started."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for client in CLIENTS.values():
        path = programs / client.program
        path.write_text(PROGRAM)
        path.chmod(stat.S_IRWXU)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    for name in ("CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def port() -> Iterator[int]:
    """A server that names its model, and reads nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": "coder-7b"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (
            "claude",
            "claude \nANTHROPIC_AUTH_TOKEN=none\nANTHROPIC_BASE_URL=URL\nANTHROPIC_MODEL=coder-7b",
        ),
        ("cline", "cline auth -p openai-compatible -k none -m coder-7b -b URL/v1\ncline"),
        ("codex", "codex -c model_provider=forerun -c model=coder-7b"),
        ("continue", "cn --config HOME/.continue/forerun.yaml"),
        ("opencode", "opencode -m forerun/coder-7b"),
        (
            "qwen",
            "qwen --auth-type openai\nOPENAI_API_KEY=none\nOPENAI_BASE_URL=URL/v1\nOPENAI_MODEL=coder-7b",
        ),
    ],
)
def test_a_client_is_started_with_the_server_that_runs(home, port, shell, client, words) -> None:
    url = f"http://127.0.0.1:{port}"
    code, _, err = shell(f"forerun launch {client} --port {port}")
    assert code == 0, err
    assert f"found: {url}, coder-7b" in err
    said = (home / "said").read_text().replace(f"{home}/bin/", "").replace(str(home), "HOME")
    lines = [line.strip() for line in said.replace(url, "URL").splitlines()]
    wanted = [line.strip() for line in words.splitlines()]
    assert sorted(lines) == sorted(wanted)
    code, shown, _ = shell(f"forerun launch {client} --port {port} --print -- --fast")
    assert code == 0
    assert shown.splitlines()[-1].endswith("--fast")
    assert url in shown


def test_words_and_the_exit_code_are_the_clients(home, port, shell, monkeypatch) -> None:
    monkeypatch.setenv("CODE", "7")
    code, _, _ = shell(f"forerun launch qwen --port {port} -- -p hello --yolo")
    assert code == 7
    assert (
        (home / "said")
        .read_text()
        .splitlines()[0]
        .endswith("qwen --auth-type openai -p hello --yolo")
    )


def test_what_is_in_codexs_file_stays_and_is_kept() -> None:
    client = CLIENTS["codex"]
    given = 'model = "gpt-5"\n\n[profiles.mine]\nmodel = "x"\n'
    once = client.write(given, "http://127.0.0.1:8000", "m")
    read = tomllib.loads(once)
    assert read["model"] == "gpt-5"
    assert read["profiles"] == {"mine": {"model": "x"}}
    assert read["model_providers"]["forerun"]["base_url"] == "http://127.0.0.1:8000/v1"
    again = client.write(once, "http://127.0.0.1:9000", "m")
    assert again == once.replace("8000", "9000")
    with pytest.raises(ValueError, match="model_providers"):
        client.write("[model_providers.forerun]\n", "u", "m")


def test_a_backup_is_made_once_and_a_file_that_is_not_read_stays(home, port, shell) -> None:
    path = home / ".config/opencode/opencode.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"theme": "dark", "provider": {"own": {}}}')
    for _ in range(2):
        assert shell(f"forerun launch opencode --port {port}")[0] == 0
    read = json.loads(path.read_text())
    assert (read["theme"], sorted(read["provider"])) == ("dark", ["forerun", "own"])
    assert (
        path.with_name(path.name + BACKUP).read_text()
        == '{"theme": "dark", "provider": {"own": {}}}'
    )
    path.write_text("// mine\n{}")
    code, _, err = shell(f"forerun launch opencode --port {port}")
    assert code == 2
    assert f"{path} is not changed, for it cannot be read" in err
    assert path.read_text() == "// mine\n{}"


def test_print_writes_and_starts_nothing(home, forerun) -> None:
    code, out, _ = forerun("launch", "codex", "--print", "--port", "1", "-m", "some.gguf")
    assert code == 0
    assert "[model_providers.forerun]" in out
    assert "codex -c model_provider=forerun -c model=" in out
    assert not (home / ".codex").exists()
    assert not (home / "said").exists()


def test_what_keeps_it_from_starting_is_said(home, port, forerun) -> None:
    code, _, err = forerun("launch", "claud")
    assert (code, "did you mean 'claude'?" in err) == (2, True)
    (home / "bin/codex").unlink()
    code, _, err = forerun("launch", "codex", "--port", str(port))
    assert code == 2
    assert "codex is not installed: there is no codex on the PATH" in err
    assert "npm install -g @openai/codex" in err
    code, _, err = forerun("launch", "qwen", "--port", str(port), "-m", "other-3b")
    assert code == 2
    assert "serves coder-7b: leave out --model" in err
    (home / ".codex").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be"):
        CLIENTS["codex"].save("u", "m")


def test_warm_knows_clients_by_what_people_call_them(home) -> None:
    assert instructions.newest("codex") is None
    folder = instructions.folder()
    folder.mkdir(parents=True)
    for name in ("codex_exec", "ai-sdk"):
        (folder / f"{name}.json").write_text('[{"role": "system", "content": "x"}]')
    assert instructions.newest("codex") == "codex_exec"
    assert instructions.newest("cline") == instructions.newest("ai-sdk") == "ai-sdk"
    assert instructions.read("codex")["messages"][0]["content"] == "x"


@pytest.mark.skipif(native.reason() is not None, reason="no native kernels")
def test_a_server_is_started_for_the_client_and_ends_with_it(home, default_model, shell) -> None:
    folder = instructions.folder()
    folder.mkdir(parents=True)
    (folder / "qwencode.json").write_text('[{"role": "system", "content": "Be kind to all. "}]')
    code, _, err = shell(f"forerun launch qwen -m {default_model} -c 512 --port 18765")
    assert code == 0, err
    assert "which ends with the client" in err
    assert "qwen: " in err
    assert "tokens were computed" in err
    assert "OPENAI_MODEL=smollm2" in (home / "said").read_text()
    again, _, err = shell("forerun launch qwen --port 18765 --print")
    assert (again, "URL" in err) == (0, False)
