"""Users without a home, and a stdout that cannot write every letter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from forerun.cli.main import app
from forerun.core.paths import NO_HOME, expanded

BARE = """
import json, pwd, sys
def unknown(*_):
    raise KeyError("no such user")
pwd.getpwuid = pwd.getpwnam = unknown  # as for `docker run --user 12345`
from forerun.cli.main import _run
for arguments in json.loads(sys.argv[1]):
    print("=== forerun", *arguments, file=sys.stderr, flush=True)
    print("ended with", _run(arguments), file=sys.stderr, flush=True)
"""


def commands(group: click.Command, *path: str) -> list[tuple[str, ...]]:
    """Every command below, as its words."""
    found = [path] if path else []
    if isinstance(group, click.Group):
        with click.Context(group) as context:
            for name in group.list_commands(context):
                below = group.get_command(context, name)
                assert below is not None
                found += commands(below, *path, name)
    return found


def run_bare(lines: list[list[str]], folder: Path, **environment: str) -> list[str]:
    """What each of the commands says, of one process with PATH alone."""
    done = subprocess.run(
        [sys.executable, "-c", BARE, json.dumps(lines)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return [text.partition("\n")[2] for text in done.stderr.split("=== forerun ")[1:]]


def calls(model: Path) -> dict[tuple[str, ...], tuple[list[str], int]]:
    """A call of each command that asks for nothing at home, or is told that something is missing; its exit code."""
    m, few = ["-m", str(model)], str(Path(__file__).parents[1] / "few.jsonl")
    short, nowhere = ["-n", "2", "-t", "1"], ["-m", "~/none.gguf"]
    return {
        ("generate",): (["hi", *m, *short], 0),
        ("chat",): ([*m, *short], 0),
        ("serve",): (nowhere, 2),
        ("launch",): (["codex", "--print", "--port", "1"], 0),
        ("service",): ([], 0),
        ("service", "install"): (["~/none.gguf"], 2),
        ("service", "remove"): ([], 2),
        ("demo",): ([], 2),
        ("models",): ([], 0),
        ("pull",): ([], 2),
        ("rm",): (["smollm2-135m-instruct"], 2),
        ("cache",): ([], 0),
        ("warm",): ([*m, "codex"], 2),
        ("check",): ([str(model)], 0),
        ("plan",): ([*m, "--max-model-len", "64", "--memory-budget", "100GB"], 0),
        ("verify",): ([*m, *short, "-d", "none", "--prompts", few, "--limit", "1"], 0),
        ("drafters",): ([], 0),
        ("quantize",): ([*nowhere, "-o", "out"], 2),
        ("tune",): (nowhere, 2),
        ("train",): ([], 0),
        ("train", "data"): (nowhere, 2),
        ("train", "table"): (nowhere, 2),
        ("train", "drafter"): (nowhere, 2),
        ("train", "draft-model"): (nowhere, 2),
        ("trim-vocab",): ([*nowhere, "-o", "out"], 2),
        ("check-drafter",): (["prompt_lookup"], 0),
        ("export-drafter",): (["~/none", "-o", "out"], 2),
        ("bench",): ([*m, *short, "--limit", "1", "-d", "none", "--task", few], 0),
        ("bench", "diff"): (["~/none.jsonl", "~/none.jsonl"], 2),
        ("bench", "host"): ([*nowhere], 2),
        ("bench", "kernels"): ([*nowhere], 2),
        ("bench", "memory"): ([*nowhere], 2),
        ("bench", "report"): (["~/none.json"], 2),
        ("bench", "share"): (nowhere, 2),
        ("eval",): ([], 0),
        ("eval", "fidelity"): ([*nowhere], 2),
        ("eval", "ppl"): (["~/none.txt", *nowhere], 2),
    }


def test_every_command_runs_for_a_user_without_a_home(default_model: Path, tmp_path: Path) -> None:
    """No HOME, no entry in the list of users, no locale."""
    every = commands(app)  # without the laboratory's where that is hidden
    ours = {each: call for each, call in calls(default_model).items() if each in every}
    assert sorted(ours) == sorted(every)
    helps = [[*command, "--help"] for command in every]
    lines = helps + [[*command, *ours[command][0]] for command in every]
    expected = [0] * len(helps) + [ours[command][1] for command in every]
    said = run_bare(lines, tmp_path)
    wrong = [
        (line, text)
        for line, text, code in zip(lines, said, expected, strict=True)
        if "Traceback" in text or f"ended with {code}" not in text
    ]
    assert not wrong, wrong
    assert not [*tmp_path.glob("~*")], "a folder called ~ was made"


def test_without_a_home_a_tilde_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert expanded("~/models/a.gguf") == NO_HOME / "models" / "a.gguf"
    assert expanded("~nobody-at-all/a") == NO_HOME / "a"
    assert expanded("/a/~") == Path("/a/~")
    with pytest.raises(OSError):  # noqa: PT011  # whoever asks, root as well
        NO_HOME.mkdir(parents=True)


ANSWER = """
import sys
from forerun.cli import console, main
from forerun.core.types import Event, TextPiece
def run(arguments):
    if arguments == ["json"]:
        console.print_json({"text": "caf\\u00e9 \\u2192 \\U0001f600 end"})
    else:
        pieces = ("caf\\u00e9 ", "\\u2192 ", "\\U0001f600 ", "end")
        console.show(Event(0, (1,), (TextPiece(each, from_draft=False),), None, None) for each in pieces)
    return 0
main._run = run
main.main()
"""


@pytest.mark.parametrize("what", ["answer", "json"])
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "cp437", "gbk", "utf-8"])
def test_what_stdout_cannot_write_is_escaped(encoding: str, what: str) -> None:
    """What it can write stands as it is."""
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, what],
        env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode("utf-8" if encoding == "ascii" else encoding)
    if what == "json":
        assert json.loads(shown) == {"text": "café → 😀 end"}
        return
    assert shown.startswith("café ")
    assert shown.endswith(" end\n")
    assert "😀" in shown or "\\U0001f600" in shown


@pytest.mark.parametrize("encoding", ["cp1252", "gbk"])
def test_commands_answer_into_a_narrow_stdout(default_model: Path, encoding: str) -> None:
    """`models`, `plan` and the like print signs that no such encoding has."""
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    for line in (
        ["drafters"],
        ["plan", "-m", str(default_model)],
        ["chat", "-m", str(default_model), "-n", "2"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "forerun", *line],
            env=environment,
            capture_output=True,
            input=b"Say hello\n",
            timeout=120,
        )
        assert b"Traceback" not in done.stderr, (line, done.stderr)
        assert done.returncode == 0, (line, done.stderr)
