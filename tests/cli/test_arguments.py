"""A command line as it is read: our options by all their names, other engines' flags, and what is refused in words."""

from __future__ import annotations

import string
from pathlib import Path

import click
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forerun.cli import options as opt
from forerun.compat import engine as spellings
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.sizes import mebibytes
from forerun.server import run
from forerun.system.device import process_nbytes
from tests.cli.helpers import FEW


@opt.command("x")
@opt.engine(without=("controller",), controller=False)
@opt.sampling()
@click.option("--raw", "-no-cnv", is_flag=True)
@click.argument("text", required=False)
def command(**values: object) -> dict[str, object]:
    return values


KNOWN = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}


def reading(*args: str) -> dict[str, object]:
    settings = {"token_normalize_func": lambda word: word.replace("_", "-")}
    with command.make_context("x", [*args], **settings) as context:
        return command.invoke(context)


@pytest.mark.parametrize(
    ("line", "config", "params"),
    [
        ("hi -n 3", {}, {"max_tokens": 3}),
        ("-n3 hi", {}, {"max_tokens": 3}),
        ("--max-tokens=3 hi", {}, {"max_tokens": 3}),
        ("-n -1 hi", {}, {"max_tokens": -1}),
        ("-n 3 hi --n-predict 4", {}, {"max_tokens": 4}),
        ("-hf a/b -no-cnv hi", {"model": "a/b"}, {}),
        ("-msmall.gguf hi", {"model": "small.gguf"}, {}),
        ("-ngl 99 hi", {}, {}),
        ("hi -ngl=99", {}, {}),
        ("-fa on hi", {}, {}),
        ("hi -fa", {}, {}),
        ("-fa -n 3 hi", {}, {"max_tokens": 3}),
        ("--no-mmap --mlock hi", {}, {}),
        ("--trust-remote-code hi", {}, {}),
        ("--no-enable-prefix-caching hi", {}, {}),
        ("--num-speculative-tokens 4 hi", {"draft_options": {"num_draft": "4"}}, {}),
        ("-ub 64 hi -kvu", {}, {}),
        ("-st --color --numa distribute -v hi -C 3 -c 64", {"max_model_len": 64}, {}),
        ("--mirostat 0 -e --no-warmup -sm none hi", {}, {}),
        ("-np 2 --max_num_seqs 3 hi", {"max_num_seqs": 3}, {}),
        ("-ctk q8_0 hi", {"kv": "int8"}, {}),
        ("-r a -r d\\n --stop b,c hi", {}, {"stop": ("a", "d\n", "b,c")}),
        ("m.gguf hi", {"model": "m.gguf"}, {}),
        ("m.gguf hi -m m.gguf", {"model": "m.gguf"}, {}),
        ("-- hi", {}, {}),
    ],
)
def test_a_line_is_read(line: str, config: dict, params: dict) -> None:
    values = reading(*line.split())
    assert values["config"] == EngineConfig(**{"controller": False, **config})
    assert values["params"] == SamplingParams(**{"temperature": 0.0, **params})
    assert values["text"] == "hi"


@given(st.text(string.ascii_letters, min_size=2, max_size=6), st.booleans())
def test_letters_behind_a_dash_are_one_option_or_none(letters: str, has_two: bool) -> None:
    flag = f"{'--' if has_two else '-'}{letters}"
    assume(flag not in KNOWN and flag != "--help")
    with pytest.raises(click.NoSuchOption) as caught:
        reading(flag, "99")
    assert caught.value.option_name == flag


def test_no_two_options_of_a_command_have_a_name_in_common() -> None:
    flags = [flag for each in command.params for flag in (*each.opts, *each.secondary_opts)]
    names = [each.name for each in command.params]
    assert len({*flags}) == len(flags)
    assert len({*names}) == len(names)
    assert spellings.IGNORED.keys() <= {*flags}


def test_of_two_models_none_is_chosen() -> None:
    with pytest.raises(ConfigError, match=r"two models, b\.gguf and a\.gguf: give one"):
        reading("a.gguf", "hi", "-m", "b.gguf")


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
    budget = process_nbytes() + (190 << 20)
    limits = ("--memory-budget", f"{budget} B", "-c", "64", "-d", "none", "--port", "0")
    code, _, err = forerun("serve", tiny_gguf, default_model, *limits)
    assert code == 2
    left = mebibytes(budget - (32 << 20))
    assert f"a memory budget of {left} is too small for {default_model}" in err


@pytest.mark.parametrize("word", ["--grammars", "--quizzical", "-xy"])
def test_a_name_that_is_far_from_all_others_gets_no_hint(forerun, word: str) -> None:
    code, _, err = forerun("verify", word, "3")
    assert code == 2
    assert f"{word} is not an option of forerun verify; forerun verify --help lists them" in err


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("forerun gener", "generate"),
        ("forerun generate --draft-m", "--draft-max"),
        ("forerun generate --kv fp1", "fp16"),
        ("forerun generate -ngl 99 --kv fp3", "fp32"),
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
    given = f"forerun verify -m {default_model} --prompts {FEW} --limit 1 -n 8 --json"
    for where in ("forerun verify", "--json"):
        code, _, err = shell(given.replace(where, f"{where} --no-controller"))
        assert (code, "has no effect" in err) == (0, False), err
    code, _, _ = shell(given.replace("--json", "--controller --json"))
    assert (code, "--controller has no effect" in caplog.text) == (0, True)
