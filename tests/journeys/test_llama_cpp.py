"""A llama.cpp user's first hour: the flags they type, with the answers they should get."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import the_json

GENERATE = ["generate", "-c", "256", "-n", "12", "--temp", "0"]


@pytest.fixture
def answer(forerun, default_model):
    """Run `forerun generate` with flags as typed; the document of the answer, and what stood on stderr."""

    def run(*typed: str) -> tuple[dict, str]:
        code, out, err = forerun(*GENERATE, "-m", default_model, *typed, "--json")
        assert code == 0, err
        return the_json(out), err

    return run


def shell(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forerun", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_llama_clis_command_line_works_as_it_is(default_model: Path) -> None:
    typed = (
        "-p 'Count: one two one two' -no-cnv -n 8 -c 256 -t 1 -ngl 99 --temp 0 "
        "--top-k 40 --top-p 0.9 --min-p 0.05 --repeat-penalty 1.1 -s 3 -fa on"
    )
    done = shell("generate", "-m", default_model, *shlex.split(typed))
    assert done.returncode == 0
    assert done.stdout.strip()
    notes = [line for line in done.stderr.splitlines() if "has no effect" in line]
    assert [note.partition(" has")[0] for note in notes] == ["-ngl 99", "-fa on"]


def test_the_same_words_by_every_spelling(answer, default_model, tmp_path) -> None:
    text = "Count: one two one two"
    file = tmp_path / "prompt.txt"
    file.write_text(text)
    draft = ["-md", str(default_model), "--draft-max", "4"]
    spellings = [
        [text],
        ["-p", text],
        ["-f", str(file)],
        ["-p", text, "-hf", str(default_model), "-ngl", "99", "--no-mmap", "--mlock", "-b", "64", "-ub", "64"],
        ["-p", text, "--spec-type", "ngram-simple", "--draft-max", "4"],
        ["-p", text, *draft, "--draft-min", "1", "--draft-p-min", "0.75", "-ngld", "99"],
        ["-p", text, "-ctk", "f16", "-ctv", "f16", "-fa", "-np", "1", "-cnv", "--jinja"],
        ["-p", text, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'],
        ["-p", text, "--num-speculative-tokens", "3", "--max-num-seqs", "4"],
    ]  # fmt: skip
    found = [answer(*spelling)[0] for spelling in spellings]
    assert len({document["text"] for document in found}) == 1
    drafters = [document["drafter"] for document in found]
    assert [name.partition(":")[0] for name in drafters] == [
        *(["mlp_speculator++recycling"] * 4),
        "prompt_lookup",
        "draft_model++mlp_speculator++recycling",
        "mlp_speculator++recycling",
        "prompt_lookup",
        "recycling",
    ]


def test_raw_text_and_a_system_prompt(answer) -> None:
    chatted, _ = answer("-p", "The capital of France is")
    raw, _ = answer("-p", "The capital of France is", "-no-cnv")
    told, _ = answer("-p", "The capital of France is", "-sys", "You speak only French.")
    assert len({one["text"] for one in (chatted, raw, told)}) == 3


def test_a_confident_draft_is_shorter_and_a_short_one_is_dropped(answer, default_model) -> None:
    draft = [
        "-p",
        "Say something.",
        "-d",
        f"draft_model:model={default_model}",
        "--draft-max",
        "4",
        "--no-controller",
    ]
    free, _ = answer(*draft)
    sure, _ = answer(*draft, "--draft-p-min", "0.99")
    none, _ = answer(*draft, "--draft-min", "5")
    assert free["text"] == sure["text"] == none["text"]
    assert 0 < sure["drafted"] < free["drafted"]
    assert none["drafted"] == 0


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("-ngx 99", "-ngx is not an option of forerun generate: did you mean -ngl?"),
        ("-ngl", "option '-ngl' requires an argument; see forerun generate --help"),
        ("-ctk q5_1", "-ctk q5_1 is not possible here: keys and values are kept as"),
        ("-d none --draft-max 4", "(given as --draft-max)"),
        ("-md x.gguf -d suffix", "drafter 'suffix' has no option model='x.gguf'"),
        ("-d ngram --draft-p-min 0.5", "(given as --draft-p-min)"),
        ("--draft-max 0", "num_draft must be at least 1, got 0 (given as --draft-max)"),
        ("--draft-min -1", "min_draft must be at least 0, got -1 (given as --draft-min)"),
        ("-mode x", "-mode is not an option of forerun generate"),
        ("--max-token 3", "did you mean --max-tokens?"),
        ("--gpu-memory-utilisation 1", "did you mean --gpu-memory-utilization?"),
        ("--mirostat 2", "--mirostat 2 is not possible here: the only filters are"),
        ("-b many", "prefill_chunk must be a whole number, got 'many' (given as -b)"),
        ("--quantization fp8", "--quantization fp8 is not possible here: weights keep the format"),
        ("-c 999999", "max_model_len must be from 2 to the model's"),
        ("--spec-type draft-mtp", "unknown drafter 'draft-mtp'"),
        ("--spec-type draft-eagle3 -md x", "error: x has no config.json: give a folder"),
        ("--spec-type draft-simple", "option 'model' must be given"),
        (
            "-m smollm2-135m-instruct -d draft_model",
            "drafter 'draft_model': option 'model' must be given",
        ),
        ("--quant int8 -d draft_model:model=x,quant=two", "option 'quant' must be none or int8"),
        ("--temp 1 -d draft_model:model=x,min_chance=2", "min_chance must be 0 to 1"),
        ("-tp 2", "--tensor-parallel-size 2 needs 2 processes: torchrun"),
        ("--temp 101", "temperature must be from 0 to 100, got 101.0"),
        ("--temp nan", "temperature must be from 0 to 100, got nan"),
        ("--seed -2", "seed must be a whole number from 0"),
        ("--seed 1.5", "seed must be a whole number or none, got '1.5'"),
        ("--seed 9223372036854775808", "seed must be a whole number from 0 to 2**63 - 1"),
    ],
)
def test_a_mistake_quotes_the_flag(forerun, default_model, typed, message) -> None:
    code, _, err = forerun("generate", "hi", *typed.split())
    assert code == 2
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_chat_begins_with_the_message_of_p(default_model) -> None:
    words = [
        "chat",
        "-m",
        default_model,
        "-p",
        "Hello",
        "-n",
        "4",
        "-c",
        "256",
        "-ngl",
        "0",
        "--temp",
        "0",
    ]
    command = [sys.executable, "-m", "forerun", *map(str, words)]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "-ngl 0 has no effect" in done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        "--no-ui --spec-draft-n-max 4 --spec-draft-n-min 1 --spec-draft-p-min .5 -np 2 -fa on",
        "--reasoning-format deepseek --reasoning off --reasoning-budget -1 --cache-reuse 256 -cb -cd 512",
        "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3 --threads-http 4",
        "--disable-log-requests --generation-config auto --swap-space 4 --block-size 16 --task generate",
    ],
)
def test_servers_present_flags_are_read(forerun, flags):
    """They end at the missing file, not at an option."""
    code, _, err = forerun("serve", "no-such.gguf", *flags.split())
    assert code == 2
    assert "no-such.gguf" in err
