"""The command line as people type it: pipes, files, `--json`, help, tables and mistakes.

Most of it runs in this process; what only a process of its own can show (pipes that close, Ctrl-C, a terminal)
gets one.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import resource
import shlex
import subprocess
import sys

import pytest

import forerun
from forerun.cli import console
from forerun.core.types import Event, TextPiece
from forerun.drafters.mlp_speculator import files
from tests.cli.helpers import FEW, check_help, check_table, one_line_of_mistake

OTHERS = files.SHIPPED / "qwen2.5-coder-1.5b-instruct"
"""A network of another model."""
SHORT = "-n 8 -c 256 -d prompt_lookup"
GREEDY = f"{SHORT} --temp 0"
COMMANDS = (
    *("", "generate", "chat", "demo", "models", "pull", "rm", "check", "drafters", "verify"),
    *("serve", "plan", "cache", "warm", "launch", "service"),
)


def test_json_is_all_that_stands_on_stdout(shell):
    code, out, err = shell(f'forerun generate "Say hello." {SHORT} --json')
    document = json.loads(out)
    assert code == 0
    assert document["text"]
    assert len(document["token_ids"]) == document["tokens"] <= 8
    assert document["finish_reason"] in ("stop", "length")
    assert "tok/s" in err
    assert document["text"] not in err, "told once"
    assert document["drafter"] == "prompt_lookup"
    figures = ("model", "seconds", "tok_s", "tau", "acceptance_rate", "acceptance_by_depth")
    assert {*figures, "draft_ms", "verify_ms", "ttft_ms", "peak_rss_mb", "threads"} <= {*document}
    for line in (
        "forerun models --json",
        "forerun drafters --json",
        "forerun drafters suffix --json",
        f"forerun verify --prompts {FEW} --limit 1 {SHORT} --json",
        f"forerun demo {SHORT} -c 1024 --json",
        "forerun check smollm2-135m-instruct smollm2-135m-instruct --json",
        "forerun pull --json",
    ):
        code, out, _ = shell(line)
        assert code == 0, line
        assert isinstance(json.loads(out), dict), line
        assert out.count("\n") == 1, line


def test_a_prompt_comes_from_words_a_pipe_or_a_file(shell, tmp_path):
    words = "Count: one two one two"
    _, expected, _ = shell(f'forerun generate "{words}" {GREEDY}')
    path = tmp_path / "prompt.txt"
    path.write_text(f"{words}\n")
    piped = f"{words}\n".encode()
    assert shell(f"forerun generate {GREEDY}", stdin=piped)[1] == expected
    assert shell(f"forerun generate - {GREEDY}", stdin=piped)[1] == expected
    assert shell(f"forerun generate -f {path} {GREEDY}")[1] == expected
    assert shell(f"forerun generate -f - {GREEDY}", stdin=piped)[1] == expected
    both = shell(f'forerun generate "Count:" {GREEDY} --json', stdin=b"one two one two\n")[1]
    one = shell(f'forerun generate "Count:\n\none two one two" {GREEDY} --json')[1]
    assert json.loads(both)["text"] == json.loads(one)["text"]


MISTAKES = [
    ("forerun generate", "no prompt: give one as an argument, with --file FILE, or on stdin"),
    ('forerun generate ""', "the prompt is empty"),
    ("forerun generate -f /no/such.txt", "no such file: /no/such.txt"),
    ("forerun generate -f /", "/ is a folder, not a text file"),
    ("forerun generate hello -f prompt.txt", "two prompts"),
    ("forerun generate hello -p hi", "give the prompt once: as it is, or with -p"),
    ("forerun generate '-5 + 3'", "put -- before a text that begins with a dash"),
    ("forerun generate m.gguf", "m.gguf is a model, not a prompt: give it as -m m.gguf"),
    ("forerun generate hello world", "a text with spaces needs quotes around it"),
    ("forerun generate hi --raw --system Pirate", "--raw leaves out the chat template"),
    ("forerun generate hi -m /no/model.gguf", "no such file: /no/model.gguf"),
    ("forerun generate hi -n many", "must be a whole number or none, got 'many' (given as -n)"),
    ("forerun generate hi --stop-token-ids x", "stop_token_ids must be a whole number, got 'x'"),
    ("forerun generate hi --no-controller=3", "does not take a value; see forerun generate --help"),
    ("forerun generate hi --temperature=hot", "temperature must be a number, got 'hot'"),
    ("forerun generate hi -n", "option '-n' requires an argument; see forerun generate --help"),
    ("forerun generate hi -d none --num-draft 4", "drafter 'none' has no option num_draft=4"),
    ("forerun generate hi -d suffix:size=4", "unknown option 'size' (allowed for 'suffix': factor"),
    ("forerun generate hi -m smolm2-135m-instruct", "did you mean 'smollm2-135m-instruct'"),
    ("forerun generate hi -d sufix", "unknown drafter 'sufix': did you mean 'suffix'?"),
    ("forerun generate hi -d suffix:num_draft=many", "option 'num_draft' must be a whole number"),
    ("forerun generate hi --temperature -1", "temperature must be from 0 to 100, got -1.0"),
    ("forerun generate hi --speculative-config {", "speculative_config is not JSON"),
    ("forerun generate hi --device tpu", "unknown device 'tpu'"),
    ("forerun generate hi --device metal", "unknown device 'metal'"),
    ("forerun generate hi --quant int5", "quant must be none or int8 or int4, got 'int5'"),
    ("forerun generate hi --head-bits 3", "unknown number of bits '3'"),
    ("forerun generate hi -t 0", "threads must be at least 1, got 0 (given as -t)"),
    (f"forerun generate '{'word ' * 300}' -c 256", "the context holds 256"),
    ("forerun pull nothing-known", "unknown model 'nothing-known'"),
    ("forerun genrate hi", "did you mean 'generate'"),
    ("forerun check", "missing argument 'TARGET'"),
    ("forerun check nothing-known", "unknown model 'nothing-known'"),
    ("forerun verify --prompts /no/such.jsonl", "no such file: /no/such.jsonl"),
    ("forerun verify --limit 0", "limit must be at least 1, got 0"),
    ("forerun verify --batch 0", "batch must be at least 1, got 0"),
    ("forerun drafters sufix", "did you mean 'suffix'"),
    ("forerun generate hi --memory-budget 600", "memory_budget must be a size such as 600MiB, got '600'"),
    ("forerun generate hi --memory-budget -1", "must be a size such as 600MiB, got '-1'"),
    ("forerun generate hi --memory-budget 100MB", "too small for smollm2-135m-instruct"),
    ("forerun generate hi -j /nowhere.json", "no such file"),
    ("forerun generate hi -j {", "--json-schema json must be a JSON schema, and is not JSON"),
    ("""forerun generate hi -j '{"type": "flower"}'""", "json cannot be used: Invalid type: flower"),
    ("forerun generate hi -j {} --ignore-eos", "exclude each other"),
    ("forerun generate hi --grammar 'root ::= ('", "grammar cannot be used"),
    ("forerun generate hi --grammar x -j {}", "give --json-schema or --grammar, not both"),
    ("forerun generate hi --grammar-file /nowhere.gbnf", "no such file"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=lambda value: value[-40:])
def test_a_mistake_is_one_line_and_exit_2(shell, line, message):
    assert message.lower() in one_line_of_mistake(shell, line).lower()


def test_a_folder_without_a_model_is_one_line_that_says_what_is_in_it(shell, tmp_path):
    code, _, err = shell(f"forerun generate hi -m {tmp_path}")
    assert (code, err.count("\n")) == (2, 1)
    assert "not a Hugging Face model folder; give a GGUF file" in err
    broken = tmp_path / "folder" / "broken.gguf"
    broken.parent.mkdir()
    broken.write_bytes(b"GGUF" + bytes(20))
    assert "broken.gguf" in one_line_of_mistake(shell, f"forerun generate hi -m {broken}")
    (tmp_path / "some.gguf").touch()
    assert (
        f"did you mean {tmp_path / 'some.gguf'}?" in shell(f"forerun generate hi -m {tmp_path}")[2]
    )


def test_a_model_without_a_template_asks_for_raw(shell, monkeypatch):
    from forerun.text.tokenizer import Tokenizer

    monkeypatch.setattr(Tokenizer, "chat_template", None)
    code, _, err = shell(f"forerun generate hi {SHORT}")
    assert (code, err.count("\n")) == (2, 1)
    assert "no chat template" in err
    assert "--raw" in err
    assert shell(f"forerun generate hi {SHORT} --raw")[0] == 0


def test_another_template_may_be_given(shell, tmp_path):
    (tmp_path / "bare.jinja").write_text("{{ messages[-1].content }}")
    template = f"--chat-template {tmp_path / 'bare.jinja'}"
    as_raw = shell(f"forerun generate hi {SHORT} --raw")[1]
    assert shell(f"forerun generate hi {SHORT} {template}")[1] == as_raw
    assert shell(f"forerun generate hi {SHORT} --chat-template chatml")[1] != as_raw


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("forerun generate hi", "the model has no chat template"),
        ("forerun chat", "the model has no chat template"),
        ("forerun generate hi -c 100000", "max_model_len must be from 2 to the model's 8192"),
        (
            "forerun generate hi --chat-template {%x%}",
            "the chat template is not valid: Encountered",
        ),
        (
            "forerun generate hi --chat-template chatlm",
            "--chat-template must be a file of Jinja, its text, or chatml; no such file: chatlm",
        ),
        ("forerun generate caf\udce9", "the prompt is not UTF-8 text"),
        (f"forerun generate hi -d mlp_speculator:model={OTHERS}", "qwen2.5-coder-1.5b-instruct"),
        (f"forerun generate hi -md {OTHERS}", "qwen2.5-coder-1.5b-instruct"),
    ],
)
def test_what_cannot_be_is_told_before_weights_are_read(shell, monkeypatch, line, message):
    from forerun.text.tokenizer import Tokenizer

    if "no chat template" in message:
        monkeypatch.setattr(Tokenizer, "chat_template", None)
    monkeypatch.setattr(
        "forerun.engine.loaded.load_model", lambda *_, **__: pytest.fail("weights are read")
    )
    assert message in one_line_of_mistake(shell, line)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_of_every_command_fits_and_is_whole(shell, columns):
    check_help(shell, COMMANDS, columns)


def test_help_shows_one_name_an_option_first_its_type_and_other_names_at_the_end(shell):
    _, out, _ = shell("forerun generate --help", columns=80)
    words = " ".join(out.split())
    assert re.search(r"-d, --drafter DRAFTER auto, none.*? Also: --spec-type", words)
    assert re.search(r"-n, --max-tokens INTEGER .*?\[default: 256\] Also: --n-predict", words)
    assert "--quant none|int8|int4" in words
    assert "-f, --file FILE" in words
    assert re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE) == [
        *("Arguments", "Options", "Model and machine", "Drafting", "More machines", "Sampling"),
    ]


def test_forerun_alone_and_its_groups_list_their_commands(shell):
    code, out, _ = shell("forerun")
    assert code == 0
    assert re.findall(r"^(\w+):$", out, re.MULTILINE) == [
        *("Options", "Answers", "Models", "Drafters", "Measurements"),
    ]
    listed = {command.split()[0] for command in COMMANDS if command}
    assert listed <= set(out.split())
    version = (0, f"forerun {forerun.__version__}\n", "")
    assert shell("forerun -V") == shell("forerun --version") == version


def test_drafters_are_listed_with_options_and_names_of_other_engines(shell):
    _, out, _ = shell("forerun drafters", columns=60)
    words = " ".join(out.split())
    assert re.search(r"prompt_lookup Prompt lookup:.*? Options: ngram_max, .*? Also: ngram", words)
    assert max(map(len, out.splitlines())) <= 60
    _, out, _ = shell("forerun drafters prompt-lookup", columns=60)
    words = " ".join(out.split())
    assert re.search(
        r"ngram_max .*?\[a whole number; default: 64\] Also: .*?prompt_lookup_max", words
    )
    assert max(map(len, out.splitlines())) <= 60


TABLES = (
    "forerun models",
    f"forerun verify --prompts {FEW} --limit 1 -n 8 -c 1024",
    "forerun check smollm2-135m-instruct",
    "forerun check smollm2-135m-instruct smollm2-135m-instruct",
)


@pytest.mark.parametrize("line", TABLES)
def test_tables_fit_60_columns(shell, line):
    check_table(shell, line)


def test_tau_is_introduced_as_tokens_per_pass(shell):
    _, _, err = shell('forerun generate "Repeat: one two one two one two" -n 24 -c 256')
    assert re.search(r"\d tokens per pass \(tau\), accepted \d+ of \d+ drafted", err)
    assert "tokens per pass (tau)" in shell("forerun demo -n 16 -c 1024")[1]


def test_drafted_tokens_are_tinted_on_a_terminal_unless_no_color_is_set(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def printed() -> str:
        monkeypatch.setattr(sys, "stdout", Terminal())
        pieces = (TextPiece("plain ", False), TextPiece("drafted", True))
        console.show([Event(0, (1, 2), pieces)])
        return sys.stdout.getvalue()

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert re.search("plain \x1b\\[[0-9;]+mdrafted\x1b\\[0m", printed())
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed() == "plain drafted\n"


FORERUN = (sys.executable, "-m", "forerun")


def test_a_closed_pipe_ends_it_quietly(default_model):
    line = f'set -o pipefail; {shlex.join(FORERUN)} generate "Tell me a story." -n 200 | head -c 4'
    ended = subprocess.run(
        ["bash", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 141, "128 + SIGPIPE, as of every tool"
    assert len(ended.stdout) == 4
    assert ended.stderr == ""


def test_ctrl_c_on_a_terminal_keeps_the_text_and_exits_130(default_model):
    # A text that goes on for ever.
    command = (*FORERUN, "generate", "Tell me about the sea.", "-n", "8000", "-c", "8192")
    pid, terminal = pty.fork()
    if pid == 0:  # the child: a terminal is its stdin, stdout and stderr
        os.execv(command[0], command)
    seen = b""
    try:
        # Behind the last line of those that were shown while it loaded.
        while seen.rpartition(b"\x1b[2K")[2].count(b" ") < 80 and (more := os.read(terminal, 1024)):
            seen += more
        os.write(terminal, b"\x03")
        while more := os.read(terminal, 1024):
            seen += more
    except OSError:  # a terminal that nobody holds any more
        pass
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert b"Traceback" not in seen
    assert re.search(rb"\d+ tokens, \d", seen), "what it came to is told"


def test_help_is_there_at_once_and_python_m_is_the_same_command():
    def cpu_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    start_s = cpu_s()
    ended = subprocess.run(
        [*FORERUN, "generate", "--help"], capture_output=True, text=True, check=True
    )
    assert cpu_s() - start_s < 1.0, "about 0.15 on an idle machine"
    assert ended.stdout.startswith("Usage: forerun generate")
