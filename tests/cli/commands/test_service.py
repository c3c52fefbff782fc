"""`forerun service`: the unit says what was asked for, and systemd is told; nothing of others is touched."""

from __future__ import annotations

import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from forerun.cli import user_unit

SYSTEMCTL = """#!/bin/sh
echo "$*" >> "$SAID"
[ "$2" != "$FAILS" ] || { echo "Failed to connect to bus" >&2; exit 1; }
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a systemctl of ours was told."""
    path = tmp_path / "bin/systemctl"
    path.parent.mkdir()
    path.write_text(SYSTEMCTL)
    path.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setenv("FAILS", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "said"


def started(unit: str) -> list[str]:
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    text = line.partition("=")[2].replace("%%", "%").replace("$$", "$")
    return shlex.split(text)[1:]


def test_a_service_is_installed_changed_and_removed(said, forerun, default_model) -> None:
    code, _, err = forerun("service", "install", default_model, "--", "--port", "9000")
    assert code == 0, err
    place = user_unit.path()
    words = started(place.read_text())
    assert words == ["-m", "forerun", "serve", str(default_model), "--port", "9000"]
    assert said.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable forerun.service",
        "--user restart forerun.service",
    ]
    assert "enable-linger" in err
    assert forerun("service", "install", default_model)[0] == 0
    assert started(place.read_text()) == words[:4]
    code, _, err = forerun("service", "remove")
    assert code == 0, err
    assert not place.exists()
    assert "--user disable --now forerun.service" in said.read_text()
    code, _, err = forerun("service", "remove")
    assert (code, "there is no service to remove" in err) == (2, True)


def test_print_writes_and_starts_nothing(said, forerun, default_model, monkeypatch) -> None:
    monkeypatch.setenv("HF_HOME", "/a b/$x")
    code, out, _ = forerun(
        "service", "install", default_model, "--print", "--", "--max-num-seqs", "2"
    )
    assert code == 0
    assert out.startswith(user_unit.MARK)
    assert 'Environment="HF_HOME=/a b/$$x"' in out
    assert not user_unit.path().exists()
    assert not said.exists()


def test_what_keeps_it_from_starting_is_said(said, forerun, default_model, monkeypatch) -> None:
    for words, message in (
        ([default_model, "--", "--prot", "1"], "--prot is not an option of serve"),
        (["no-such.gguf"], "no-such.gguf"),
    ):
        code, _, err = forerun("service", "install", *words)
        assert code == 2
        assert message in err
    monkeypatch.setenv("FAILS", "enable")
    code, _, err = forerun("service", "install", default_model)
    assert code == 2
    assert "systemctl --user enable forerun.service: Failed to connect to bus" in err
    user_unit.path().write_text("[Service]\n")
    code, _, err = forerun("service", "install", default_model)
    assert (code, "was not written by forerun: save it elsewhere first" in err) == (2, True)
    assert user_unit.path().read_text() == "[Service]\n"
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = forerun("service", "install", default_model)
    assert (code, "there is no systemctl here" in err) == (2, True)


def test_the_unit_is_one_that_systemd_reads(tmp_path, monkeypatch) -> None:
    path = tmp_path / "forerun.service"
    path.write_text(user_unit.unit(["a model.gguf", "--system", 'say "hi" 100% $HOME']))
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(path)], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("no systemd here")
    assert "forerun.service:" not in done.stderr
