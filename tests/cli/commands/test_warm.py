"""`forerun warm`: what a client sent before a user's words is read ahead, and found by the next process."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from forerun.core.errors import LoadError
from forerun.model.kernels import native
from forerun.server import instructions
from forerun.server.instructions import MAX_NBYTES, NAMES, SAID, LastSeen, client_of
from tests.server.conftest import apart

RULES = " ".join(f"Rule {i} is kept by all who read rule {i}." for i in range(60))
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.mark.skipif(native.reason() is not None, reason="no native kernels")
def test_what_a_client_sent_is_read_ahead_of_its_next_question(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    told = [{"role": "system", "content": RULES}]
    body = {"messages": [*told, {"role": "user", "content": "My name is Ada."}], "tools": [TOOL]}
    with apart(default_model, "--prompt-cache", str(tmp_path / "mine"), ends=True) as (
        _,
        url,
        said,
    ):
        assert "kept on disk: prompts, answers, in " in said
        agent = {"user-agent": "An-Agent/1.2 (linux)"}
        answer = httpx.post(
            f"{url}/v1/chat/completions", json={**body, "max_tokens": 1}, headers=agent, timeout=60
        )
        num_told = answer.json()["usage"]["prompt_tokens"] - 20
    kept = json.loads((instructions.folder() / "an-agent.json").read_text())
    assert kept == {"messages": [*told, SAID], "tools": [TOOL]}
    for least, most in ((0, 0), (num_told // 64 * 64, num_told + 64)):
        code, _, err = shell(f"forerun warm an-agent -m {default_model}")
        assert code == 0, err
        num_read, num_there = map(
            int, re.findall(r"(\d+) (?:tokens were computed|were cached)", err)
        )
        assert least <= num_there <= most
        assert num_read + num_there > num_told


def test_what_is_kept_of_clients_is_bounded_and_cleared(tmp_path, monkeypatch, forerun) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    seen, told = LastSeen(), [{"role": "system", "content": RULES}]
    for number in range(40):
        seen.note(f"agent{number}/1", told, {"tools": [TOOL]})
    seen.note("large/1", told, {"tools": [{**TOOL, "x": "a" * MAX_NBYTES}]})
    names = {path.stem for path in instructions.folder().iterdir()}
    assert names == {f"agent{number}" for number in range(40 - NAMES, 40)}
    assert len(seen._kept) == NAMES
    assert not any(RULES[:20].encode() in kept for kept in seen._kept.values())
    code, _, err = forerun("cache", "--prompt-cache", tmp_path / "mine", "--clear")
    assert code == 0, err
    assert not [*instructions.folder().iterdir()]


def test_clients_are_named_by_their_product() -> None:
    agents = ("claude-cli/2.1.197 (external, cli)", "Codex_CLI_rs/0.1", "", "../../etc/x", "(x)")
    assert [*map(client_of, agents)] == ["claude-cli", "codex_cli_rs", None, None, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "cannot be read as JSON"),
        ("{}", "must hold a list"),
        ("[1]", "must hold a list"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(LoadError, match=message):
        instructions.read(str(path))


def test_a_client_that_was_not_seen_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    with pytest.raises(LoadError, match="no client has sent a request yet"):
        instructions.read("claude-cli")
    instructions.folder().mkdir(parents=True)
    (instructions.folder() / "claude-cli.json").write_text('[{"role": "system", "content": "x"}]')
    with pytest.raises(LoadError, match="did you mean 'claude-cli'"):
        instructions.read("claude-cly")
    assert instructions.read("claude-cli")["messages"][-1] == SAID
