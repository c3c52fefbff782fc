"""The commands of the laboratory as people type them: help, `--json`, tables and mistakes."""

from __future__ import annotations

import json
import re

import pytest
import typer

from forerun.cli.main import app
from tests.cli.helpers import check_help, check_table, one_line_of_mistake
from tests.journeys.test_command_line import COMMANDS as OF_THE_ENGINE

COMMANDS = (
    *("autotune", "check-drafter", "bench", "bench chat", "bench serve", "bench learn"),
    *("bench memory", "bench kernels", "bench report", "eval", "eval ppl", "eval tasks"),
    *("eval distribution", "eval fidelity", "train", "train table", "train data"),
    *("train drafter", "train draft-model", "trim-vocab", "export-drafter", "quantize"),
)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_of_every_command_fits_and_is_whole(shell, columns):
    check_help(shell, COMMANDS, columns)


def test_forerun_alone_and_its_groups_list_their_commands(shell):
    listed = {command.split()[0] for command in (*OF_THE_ENGINE, *COMMANDS) if command}
    assert listed <= set(shell("forerun")[1].split())
    assert {*typer.main.get_command(app()).commands} == listed, "a new command is tested here"
    for command in COMMANDS:
        group, _, name = command.partition(" ")
        assert name in shell(f"forerun {group} --help")[1]


def test_json_is_all_that_stands_on_stdout(shell, tmp_path):
    (tmp_path / "text.txt").write_text("The sea is calm. The sky is clear. The sea is calm.")
    for line in (
        "forerun bench --limit 1 -n 4 -c 1024 -d none --json",
        f"forerun eval ppl {tmp_path / 'text.txt'} --json",
    ):
        code, out, _ = shell(line)
        assert code == 0, line
        assert isinstance(json.loads(out), dict), line
        assert out.count("\n") == 1, line


MISTAKES = [
    ("forerun bench --rounds 0", "rounds must be at least 1, got 0"),
    ("forerun bench report /no/such.jsonl", "no such file: /no/such.jsonl"),
    ("forerun bench --json-schema {} --peers llama_cpp", "leave out --peers"),
    ("forerun eval ppl /no/such.txt", "no such file: /no/such.txt"),
    *(
        (f"forerun {command} -m a.gguf --model b.gguf", "two models, a.gguf and b.gguf: give one")
        for command in ("bench", "eval ppl")
    ),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=lambda value: value[-40:])
def test_a_mistake_is_one_line_and_exit_2(shell, line, message):
    assert message in one_line_of_mistake(shell, line)


TABLES = (
    "forerun bench --limit 1 -n 8 -c 1024 -d none,prompt_lookup",
    "forerun bench kernels --cases 1,32x1@8 --repeats 1",
    "forerun eval distribution --prompt One,one --samples 40 --length 1 --top-p 1 --temp 1",
)


@pytest.mark.parametrize("line", TABLES)
def test_tables_fit_60_columns(shell, line):
    check_table(shell, line)


def test_bench_prints_a_table_and_markdown_where_asked(shell):
    line = "forerun bench --limit 1 -n 8 -c 1024 -d none,prompt_lookup"
    _, out, _ = shell(line)
    assert "|" not in out
    assert re.search(r"^drafter +tok/s +speed-up +tau +same$", out, re.MULTILINE)
    _, out, _ = shell(f"{line} --markdown")
    assert "| tok/s |" in out
    assert "### Speed-up by category" in out
