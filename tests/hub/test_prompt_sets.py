"""Prompt files are read line by line, whatever else looks like the end of a line."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading

import pytest

from forerun.core.errors import ConfigError
from forerun.hub.prompt_sets import PublishedSet, file_of, read


def test_unicode_line_separators_stay_inside_their_prompt(tmp_path):
    text = "one\u2028still one\u2029and\x0bon"
    path = tmp_path / "task.jsonl"
    path.write_text(json.dumps({"turns": [text]}, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert [prompt.turns for prompt in read(path)] == [(text,)]


@pytest.mark.parametrize("line", ["{", "[]", '{"turns": []}', '{"turns": [1]}'])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "task.jsonl"
    path.write_text('{"turns": ["good"]}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2"):
        read(path)


LINE = b'{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}\n'


@pytest.fixture
def published():
    """A server with one file; gives its address and the paths that were asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(LINE)

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/question.jsonl", asked
        server.shutdown()


def test_a_published_set_is_fetched_once_and_read(published, tmp_path, monkeypatch):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    url, asked = published
    known = {"a_bench": PublishedSet(url, hashlib.sha256(LINE).hexdigest())}
    (prompt,) = read(file_of("a_bench", known))
    assert (prompt.id, prompt.category, prompt.turns) == ("81", "writing", ("Write.", "Again."))
    file_of("a_bench", known)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("path", "advice"),
    [("/question.jsonl", "its checksum differs"), (":1/x", "could not be fetched")],
)
def test_what_cannot_be_fetched_says_what_to_do(published, tmp_path, monkeypatch, path, advice):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    url = published[0] if path[0] == "/" else f"http://127.0.0.1{path}"
    with pytest.raises(ConfigError, match=f"{advice}.*give --task FILE.jsonl"):
        file_of("a_bench", {"a_bench": PublishedSet(url, "0" * 64)})
