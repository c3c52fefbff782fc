"""The commands of the laboratory as people type them: help, `--json`, tables and mistakes."""

from __future__ import annotations

import json
import re

import click
import pytest

from forerun.cli import options
from forerun.cli.main import app
from tests.cli.helpers import FEW, check_help, check_table, one_line_of_mistake
from tests.journeys.test_command_line import COMMANDS as OF_THE_ENGINE

COMMANDS = (
    *("tune", "check-drafter", "bench"),
    *(
        "bench memory",
        "bench kernels",
        "bench report",
        "bench diff",
        "bench share",
        "eval",
        "eval ppl",
    ),
    *("eval fidelity", "train", "train table", "train data"),
    *("train drafter", "train draft-model", "trim-vocab", "export-drafter", "quantize"),
)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_of_every_command_fits_and_is_whole(shell, columns):
    check_help(shell, COMMANDS, columns)


def test_forerun_alone_and_its_groups_list_their_commands(shell):
    listed = {command.split()[0] for command in (*OF_THE_ENGINE, *COMMANDS) if command}
    assert listed <= set(shell("forerun")[1].split())
    assert {*app.list_commands(click.Context(app))} == listed, "a new command is tested here"
    for command in COMMANDS:
        group, _, name = command.partition(" ")
        assert name in shell(f"forerun {group} --help")[1]


def test_json_is_all_that_stands_on_stdout(shell, tmp_path):
    (tmp_path / "text.txt").write_text("The sea is calm. The sky is clear. The sea is calm.")
    for line in (
        f"forerun bench --task {FEW} --limit 1 -n 4 -d none --json",
        f"forerun eval ppl {tmp_path / 'text.txt'} --json",
    ):
        code, out, _ = shell(line)
        assert code == 0, line
        assert isinstance(json.loads(out), dict), line
        assert out.count("\n") == 1, line


MISTAKES = {
    "tune": {
        "--tokens x": "--tokens must be a count such as 200k",
        "--repeats 3": "tune without -d decides --repeats itself: leave it out",
        "-d suffix --tokens 5k": "-d decides --tokens itself: leave it out",
        "-d sufix": "did you mean 'suffix'",
        "-d suffix:depth=3": "unknown option 'depth'",
        "-d none": "name a drafter besides none",
        "-d draft_model": "model=...",
        "--limit 0": "limit must be at least 1",
        "--prompts /no/such.jsonl": "no such file: /no/such.jsonl",
    },
    "bench": {
        "reprt": "did you mean 'report'",
        "-ngx 3": "-ngx is not an option of forerun bench: did you mean -ngl?",
        "report": "missing argument 'FILES...'; see forerun bench report --help",
        "/no.gguf --limit 1": "no such file: /no.gguf",
        "--rounds 0": "rounds must be at least 1, got 0",
        "--json-schema {} --peers llama_cpp": "leave out --peers",
        "-m a.gguf --model b.gguf": "two models, a.gguf and b.gguf: give one",
        "--task gsm8k": "--tasks-dir",
        "--task /no/such.jsonl": "no such file: /no/such.jsonl",
        "--categories cod": "did you mean 'code'",
        "--draft-budget 0": "draft_budget must be at least 1",
        "--limit 0": "limit must be at least 1",
        "--batch 0": "batch must be at least 1",
        "-d sufix": "did you mean 'suffix'",
        "--peers lama.cpp": "did you mean 'llama.cpp'",
        "--peers llama.cpp --temp 1": "temperature 0, batch 1",
    },
    "bench report": {"/no/such.jsonl": "no such file: /no/such.jsonl"},
    "eval": {
        "ppl /no/such/file": "no such file: /no/such/file",
        "ppl x -m a.gguf --model b.gguf": "two models, a.gguf and b.gguf: give one",
        "ppl x --limit-tokens 1": "limit_tokens must be at least 2, got 1",
    },
    "train drafter": {
        "--kind eagle": "unknown --kind 'eagle': did you mean 'eagle3'?",
        "--loss mse": "unknown --loss 'mse'",
        "--optimizer sgd": "unknown --optimizer 'sgd'",
        "--tokens many": "--tokens must be a count",
        "--depth 0": "--depth must be at least 1",
    },
    "train table": {
        "--tokens many": "--tokens must be a count such as 200k or 5M, got 'many'",
        **dict.fromkeys((f"--tokens {n}" for n in ("nan", "1e999k", "0")), "must be a count"),
        "--size-mb 0": "--size-mb must be from 0.01 to 4000, got 0",
        "--size-mb nan": "--size-mb must be",
        "--order 0": "order must be at least 1",
        "--prompts nowhere.jsonl": "nowhere.jsonl",
        "-o .": "is a folder",
        "-o /dev/null/a.table": "cannot be written",
    },
}
LINES = [
    (f"forerun {c} {given}", m) for c, mistakes in MISTAKES.items() for given, m in mistakes.items()
]


@pytest.mark.parametrize(("line", "message"), LINES, ids=lambda value: value[-40:])
def test_a_mistake_is_one_line_and_exit_2(shell, monkeypatch, line, message):
    if line.startswith("forerun train"):  # what takes hours is checked first
        monkeypatch.setattr(options, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    assert message in one_line_of_mistake(shell, line)


def test_tables_fit_60_columns(shell):
    check_table(shell, "forerun bench kernels --cases 1,32x1@8 --repeats 1")
    line = f"forerun bench --task {FEW} --limit 1 -n 8 -d none,prompt_lookup"
    out = check_table(shell, line)
    assert "|" not in out
    assert re.search(r"^drafter +tok/s +speed-up +tau +same$", out, re.MULTILINE)
