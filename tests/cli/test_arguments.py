"""Reading a command line before click does: known options, other engines' flags, and what is refused in words."""

from __future__ import annotations

import string
from pathlib import Path

import click
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forerun.cli.arguments import Arguments, add_model, check_one, read
from forerun.core.device import process_nbytes
from forerun.core.errors import ConfigError
from forerun.core.sizes import mebibytes
from forerun.server import run
from forerun.spellings import engine as spellings
from forerun.spellings.flags import FLAGS

OPTIONS = [
    click.Option(["-n", "--max-tokens"], type=int),
    click.Option(["-m", "--model", "-hf"]),
    click.Option(["--raw", "-no-cnv"], is_flag=True),
    click.Option(["--controller/--no-controller"]),
]
KNOWN = {name for option in OPTIONS for name in (*option.opts, *option.secondary_opts)}
READS = {*spellings.NAMES, "max_num_seqs"}


def reading(*args: str, ends: bool = False) -> Arguments:
    return read(args, OPTIONS, READS, path="forerun x", ends=lambda word: ends)


@pytest.mark.parametrize(
    ("line", "rest", "foreign", "typed"),
    [
        ("hi -n 3", "hi -n 3", {}, {"max_tokens": "-n"}),
        ("-n3 hi", "-n3 hi", {}, {"max_tokens": "-n"}),
        ("--max-tokens=3", "--max-tokens=3", {}, {"max_tokens": "--max-tokens"}),
        ("-n -1", "-n -1", {}, {"max_tokens": "-n"}),
        ("-hf a/b -no-cnv x", "-hf a/b -no-cnv x", {}, {"model": "-hf", "raw": "-no-cnv"}),
        ("--no-controller", "--no-controller", {}, {"controller": "--no-controller"}),
        ("-ngl 99 hi", "hi", {"-ngl": "99"}, {}),
        ("-ngl=99", "", {"-ngl": "99"}, {}),
        ("-fa on hi", "hi", {"-fa": "on"}, {}),
        ("-fa hi", "hi", {"-fa": True}, {}),
        ("--flash-attn", "", {"--flash-attn": True}, {}),
        ("--no-mmap --mlock hi", "hi", {"--no-mmap": True, "--mlock": True}, {}),
        ("--trust-remote-code hi", "hi", {"--trust-remote-code": True}, {}),
        ("--no-enable-prefix-caching", "", {"--no-enable-prefix-caching": False}, {}),
        ("--num-speculative-tokens 4", "", {"--num-speculative-tokens": "4"}, {}),
        ("-ub 64", "", {"-ub": "64"}, {}),
        ("-st --color --numa distribute -v hi", "hi", {}, {}),
        ("--mirostat 0 -e --no-warmup -sm none hi", "hi", {}, {}),
        ("-np 2 --max_num_seqs 3", "", {"-np": "2", "--max_num_seqs": "3"}, {}),
        ("- -n 2", "- -n 2", {}, {"max_tokens": "-n"}),
        ("-- -ngl 99", "-- -ngl 99", {}, {}),
    ],
)
def test_words_are_sorted(line: str, rest: str, foreign: dict, typed: dict) -> None:
    assert reading(*line.split()) == Arguments(rest.split(), foreign, typed)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-ngx 99", "-ngx is not an option of forerun x: did you mean -ngl?"),
        ("-nm", "-nm is not an option of forerun x: did you mean"),
        ("-msmall.gguf", "did you mean -m small.gguf?"),
        ("--max-token 3", "did you mean --max-tokens?"),
        ("--gpu-memory-utilisation 1", "did you mean --gpu-memory-utilization?"),
        ("-ngl", "-ngl needs a value"),
        ("--numa", "--numa needs a value"),
        ("--mirostat 2", "--mirostat 2 is not possible here: the filters are"),
        ("-f", "-f is not an option of forerun x; forerun x --help lists them"),
        ("-sx", "-sx is not an option of forerun x; forerun x --help lists them"),
        ("-mode", "-mode is not an option of forerun x; forerun x --help lists them"),
    ],
)
def test_other_words_with_a_dash_are_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reading(*line.split())
    assert message in str(caught.value)


def test_a_group_leaves_the_words_of_its_commands_alone() -> None:
    assert reading("-n", "3", "ppl", "-ngx", ends=True).words == ["-n", "3", "ppl", "-ngx"]


@given(st.text(string.ascii_letters, min_size=2, max_size=6), st.booleans())
def test_letters_behind_a_dash_are_one_option_or_none(letters: str, has_two: bool) -> None:
    flag = f"{'--' if has_two else '-'}{letters}"
    assume(flag not in KNOWN and flag not in FLAGS and spellings.plain(flag) not in READS)
    with pytest.raises(ConfigError, match=f"^{flag} is not an option of forerun x"):
        reading(flag, "99")


@given(st.lists(st.text(string.ascii_letters + " .", min_size=1), max_size=5))
def test_words_without_a_dash_stay_as_they_are(words: list[str]) -> None:
    assert reading(*words) == Arguments(words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a.gguf", "-m a.gguf"),
        ("--raw a.gguf -n 3", "--raw -m a.gguf -n 3"),
        ("a.gguf text.txt", "-m a.gguf text.txt"),
        ("a.gguf -m a.gguf", "-m a.gguf -m a.gguf"),
    ],
)
def test_the_first_word_without_a_dash_becomes_the_model(line: str, words: str) -> None:
    arguments = reading(*line.split())
    add_model(arguments)
    assert arguments.words == words.split()
    check_one(arguments.models)


@pytest.mark.parametrize("command", ["generate hi", "chat", "plan", "verify"])
def test_commands_of_one_model_refuse_a_second(forerun, command: str) -> None:
    code, _, err = forerun(*command.split(), "-m", "a.gguf", "--model", "b.gguf")
    assert code == 2
    assert "two models, a.gguf and b.gguf: give one (forerun serve takes several)" in err


@pytest.mark.parametrize(
    ("line", "models"),
    [
        ("-m A -m B", "A B"),
        ("A B", "A B"),
        ("A -m B --model=A", "B A"),
        ("-m A", "A"),
        ("A", "A"),
    ],
)
def test_serve_takes_several_models(
    forerun, tiny_gguf: Path, tmp_path: Path, monkeypatch, line: str, models: str
) -> None:
    paths = {name: tmp_path / f"{name}.gguf" for name in "AB"}
    for path in paths.values():
        path.write_bytes(tiny_gguf.read_bytes())
    served: list[str] = []

    def serve(sources, *_, check, **__) -> None:
        check()
        served.extend(source.model for source in sources)
        assert sources[0].load().path == Path(sources[0].model)

    monkeypatch.setattr(run, "serve", serve)
    words = [str(paths.get(word, word)) for word in line.replace("=A", f"={paths['A']}").split()]
    code, _, err = forerun("serve", *words, "-d", "none", "-c", "64")
    assert code == 0, err
    assert served == [str(paths[name]) for name in models.split()]


def test_a_budget_that_is_too_small_for_one_of_several_is_refused_at_once(
    forerun, tiny_gguf: Path, default_model: Path
) -> None:
    """One alone fits; 32 MiB are kept for what dropped models leave."""
    budget = process_nbytes() + (128 << 20)
    limits = ("--memory-budget", f"{budget} B", "-c", "64", "-d", "none", "--port", "0")
    code, _, err = forerun("serve", tiny_gguf, default_model, *limits)
    assert code == 2
    left = mebibytes(budget - (32 << 20))
    assert f"a memory budget of {left} is too small for {default_model}" in err


@pytest.mark.parametrize("word", ["--grammars", "--top-q", "--miro"])
def test_a_name_that_is_far_from_all_others_gets_no_hint(word: str) -> None:
    with pytest.raises(ConfigError, match="; forerun x --help lists them"):
        reading(word)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("forerun gener", "generate"),
        ("forerun generate --draft-m", "--draft-max"),
        ("forerun generate --kv fp1", "fp16"),
        ("forerun generate -ngl 99 --backend nat", "native"),
    ],
)
def test_shells_complete_commands_options_and_values(forerun, monkeypatch, line, word) -> None:
    monkeypatch.setenv("_FORERUN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    code, out, _ = forerun()
    assert code == 0
    assert f"plain,{word}" in out.splitlines()


def test_a_switch_of_our_own_that_is_fixed_takes_no_word(default_model, shell, caplog):
    given = f"forerun verify -m {default_model} --limit 1 -n 8 -c 512 --json"
    for where in ("forerun verify", "--json"):
        code, _, err = shell(given.replace(where, f"{where} --no-controller"))
        assert (code, "has no effect" in err) == (0, False), err
    code, _, _ = shell(given.replace("--json", "--controller --json"))
    assert (code, "--controller has no effect" in caplog.text) == (0, True)
