# ruff: noqa: F811  # fixtures of other folders
"""`forerun chat --url`: a conversation with a server, ours and a small one that says what a test wants."""

from __future__ import annotations

import io
import json
import sys

import pytest

from tests.server.conftest import llm, served, url  # noqa: F401
from tests.server.test_client import DONE, END, TEXT, event, server  # noqa: F401


@pytest.fixture
def typed(monkeypatch):
    """What the user types, a line each."""

    def set_lines(*lines: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return set_lines


def test_a_server_answers_with_the_turns_before_it(forerun, server, typed, tmp_path):
    server.streams(TEXT + END + DONE)
    file = tmp_path / "kept.json"
    typed("/system Be brief.", "Hello", "Again", f"/save {file}", "/clear", "New")
    code, said, told = forerun("chat", "--url", server.url, "--api-key", "secret", "-n", "9")
    assert (code, said) == (0, "Hi\nHi\nHi\n")
    system, hi = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Hi"}
    hello, again = ({"role": "user", "content": text} for text in ("Hello", "Again"))
    asked = [body["messages"] for body in server.asked]
    assert asked[:2] == [[system, hello], [system, hello, hi, again]]
    assert asked[2] == [system, {"role": "user", "content": "New"}]
    assert json.loads(file.read_text()) == [system, hello, hi, again, hi]
    assert {*server.keys} == {"Bearer secret"}
    first = server.asked[0]
    assert (first["model"], first["max_tokens"]) == ("tiny", 9)
    assert "temperature" not in first  # the server's own
    assert "3 answers, 3 tokens" in told


def test_settings_that_are_given_are_sent(forerun, server, typed):
    server.streams(TEXT + END + DONE)
    typed("Hello")
    flags = ["--temperature", "0.5", "--top-k", "7", "--stop", "x"]
    assert forerun("chat", "--url", server.url, *flags)[0] == 0
    body = server.asked[0]
    assert (body["temperature"], body["top_k"], body["stop"]) == (0.5, 7, ["x"])
    assert body.keys() == {
        *("model", "messages", "stream", "stream_options"),
        *("temperature", "top_k", "stop", "max_tokens"),
    }


def test_our_own_server_answers_and_tells_what_drafting_did(forerun, url, typed):
    typed("/drafter none", "Count: 1 2 3 1 2 3", "/drafter auto", "Count: 1 2 3 1 2 3")
    code, said, told = forerun("chat", "--url", url, "-n", "12", "--temperature", "0")
    assert code == 0
    assert len(said.strip()) > 2
    plain, drafted = [line for line in told.splitlines() if " tok/s" in line]
    assert "drafted" not in plain
    assert "prompt_lookup: " in drafted
    assert "tokens per pass (tau)" in drafted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (event(delta={"content": "Hi"}), "ended the answer early: the stream has no end"),
        (TEXT + b'data: {"error": {"message": "no memory"}}\n\n', "early: no memory"),
    ],
)
def test_half_an_answer_is_an_error_of_one_line(forerun, server, typed, text, message):
    server.streams(text)
    typed("Hello")
    code, said, told = forerun("chat", "--url", server.url)
    assert (code, said) == (2, "Hi\n")
    assert message in told.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--url", "127.0.0.1:9"], "does not answer: Connection refused"),
        (["--url", "URL", "-m", "tini"], "unknown model 'tini': did you mean 'tiny'"),
        (["--url", "URL", "-d", "suffix"], "-d is for a model of this machine"),
        (["--url", "URL", "-t", "2"], "-t is for a model of this machine"),
        (["--api-key", "x"], "--api-key is for a server"),
    ],
)
def test_mistakes_are_one_line(forerun, server, flags, message):
    code, said, told = forerun("chat", *(server.url if flag == "URL" else flag for flag in flags))
    assert (code, said) == (2, "")
    assert message in told
    assert told.count("\n") == 1


def test_commands_that_a_server_cannot_do_say_so(forerun, server, typed):
    typed("/drafter suffix")
    code, _, told = forerun("chat", "--url", server.url)
    assert code == 2
    assert "/drafter needs forerun serve" in told
