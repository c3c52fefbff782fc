"""What is typed into a chat, and the conversation it becomes. In a terminal: tests/journeys/test_chat.py."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun import LLM, SamplingParams
from forerun.cli.chat_input import COMMANDS, ChatInput, help_text, history, parse
from forerun.cli.chat_models import LocalModel
from forerun.cli.conversation import Conversation
from forerun.core.errors import CapacityError, ConfigError, ForerunError
from forerun.engine.engine import Engine

GREEDY = SamplingParams(temperature=0.0, max_tokens=16)


# Commands


@pytest.mark.parametrize(
    ("typed", "name", "argument"),
    [
        ("/help", "help", ""),
        ("/?", "help", ""),
        ("/quit", "exit", ""),
        ("/bye", "exit", ""),
        ("/exit  ", "exit", ""),
        ("/system  You are brief. ", "system", "You are brief."),
        ("/system You have\ntwo lines.", "system", "You have\ntwo lines."),
        ("/system", "system", ""),
        ("/drafter suffix:num_draft=4", "drafter", "suffix:num_draft=4"),
        ("/save a file.json", "save", "a file.json"),
        ("/regenerate", "regen", ""),
    ],
)
def test_a_command_is_read_with_its_argument(typed, name, argument):
    assert parse(typed) == (name, argument)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("/foo", "unknown command '/foo'"),
        ("/syste You", "unknown command '/syste': did you mean '/system'?"),
        ("/", "unknown command '/'"),
        ("/usr/bin/env what is it?", "unknown command '/usr/bin/env'"),
        ("/clear all", "/clear takes no argument, got 'all'"),
        ("/save", "/save needs a FILE"),
    ],
)
def test_what_is_no_command_is_an_error_that_lists_them(typed, message):
    with pytest.raises(ConfigError) as caught:
        parse(typed)
    assert message in str(caught.value)
    if "unknown" in message:
        assert all(f"/{name}" in str(caught.value) for name in COMMANDS)


def test_help_names_every_command_and_fits_80_columns():
    text = help_text()
    assert all(f"/{name}" in text for name in COMMANDS)
    assert max(map(len, text.splitlines())) <= 80


# Lines


def turns(text: str) -> list[str]:
    """The turns of a piped text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(text))
        source, found = ChatInput(), []
        while True:
            try:
                found.append(source.read())
            except EOFError:
                return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello\nAgain\n", ["Hello", "Again"]),
        ("no line end", ["no line end"]),
        ("", []),
        ("one \\\ntwo\\\n  three\nfour\n", ["one \ntwo\n  three", "four"]),
        ('"""\ndef f():\n\n    return 1\n"""\nnext\n', ["def f():\n\n    return 1", "next"]),
        ('"""one line"""\n', ["one line"]),
        ('/system """\nBe brief.\nBe kind.\n"""\n', ["/system Be brief.\nBe kind."]),
        ('say """ here\n', ['say """ here']),
        ("  /help is what?\n", [" /help is what?"]),
        ('"""\n/help\n"""\n', [" /help"]),
        ("/help \n", ["/help"]),
        ('"""never\nended', ["never\nended"]),
        ("ends in \\", ["ends in"]),
        ("\n\n", ["", ""]),
        ("windows\r\n", ["windows"]),
    ],
)
def test_turns_of_one_line_and_of_several(text, expected):
    assert turns(text) == expected


@given(st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t"))))
def test_texts_in_triple_quotes_are_read_as_they_are(texts):
    texts = [text.replace('"', "'").strip() for text in texts]
    expected = [f" {text}" if text.startswith("/") else text for text in texts]
    assert turns("".join(f'"""\n{text}\n"""\n' for text in texts)) == expected


def test_bytes_that_are_no_text_are_an_error_in_words(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), "utf-8"))
    with pytest.raises(ConfigError, match="stdin is not UTF-8 text"):
        ChatInput().read()


@pytest.mark.parametrize(
    ("pasted", "message"),
    [
        ("def f(x):\n    return x\n", "def f(x):\n    return x"),
        ('"""Doc."""\ncode()', '"""Doc."""\ncode()'),
        ("// a comment\nint x;", " // a comment\nint x;"),
        ("/system Be brief.\nBe kind.", "/system Be brief.\nBe kind."),
        ("a \\\nb", "a \\\nb"),
    ],
)
def test_pasted_lines_are_one_message_as_they_are(monkeypatch, pasted, message):
    monkeypatch.setattr(ChatInput, "_line", lambda self, prompt: pasted)
    assert ChatInput().read() == message


def test_without_readline_there_is_a_chat_without_history(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "readline", None)
    with history(tmp_path / "history"):
        pass
    assert not (tmp_path / "history").exists()


# The conversation


@pytest.fixture(scope="module")
def llm(default_model) -> LLM:
    return LLM(str(default_model), max_model_len=192, max_num_seqs=1)


@pytest.fixture
def talk(llm) -> Conversation:
    return Conversation(LocalModel(llm, GREEDY))


def rows(llm: LLM, action: Callable[[], object]) -> int:
    """How many rows the model computes meanwhile."""
    num_rows, forward = 0, llm.model.forward

    def counted(batch, *rest):
        nonlocal num_rows
        num_rows += batch.num_rows
        return forward(batch, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(llm.model), "forward", lambda self, *rest: counted(*rest))
        action()
    return num_rows


def test_earlier_turns_are_not_computed_again(llm, talk, capsys):
    plain = Conversation(LocalModel(llm.with_drafter("none"), GREEDY))
    plain.send(
        "Tell me about the rivers and the mountains of France, their names and their length."
    )
    before = len(plain.model.llm.encode(plain.messages))
    num_rows = rows(plain.model.llm, lambda: plain.send("And of Italy?"))
    whole = len(plain.model.llm.encode(plain.messages))
    assert before > 40
    assert num_rows <= whole - before + 16, "the new message, the answer, and the turn's marks"


def test_an_answer_that_was_cut_goes_on_as_if_it_had_not_been(llm, capsys):
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    cut, whole = (
        Conversation(LocalModel(llm, params)),
        Conversation(LocalModel(llm, replace(params, max_tokens=48))),
    )
    whole.send("Count from one to thirty.")
    assert "cut at 16 tokens (--max-tokens)" in cut.send("Count from one to thirty.")
    num_rows = rows(llm, cut.resume)
    cut.resume()
    assert cut.messages == whole.messages
    assert num_rows < 16 * 5, "only new tokens and drafts are computed"
    assert len(cut.messages) == 2


def test_an_answer_that_ended_does_not_go_on(talk, capsys):
    talk.send("Say yes.")
    talk.model.params = SamplingParams(temperature=0.0, max_tokens=100)
    while talk.rest:
        talk.resume()
    with pytest.raises(ConfigError, match="is complete"):
        talk.resume()


def test_half_a_character_is_not_kept(llm, capsys):
    talk = Conversation(
        LocalModel(llm, SamplingParams(temperature=0.0, max_tokens=1, logit_bias=emoji(llm)))
    )
    talk.send("Hi")
    assert not talk.rest or "\ufffd" not in talk.messages[-1]["content"]


def emoji(llm: LLM) -> dict[int, float]:
    """A bias to the first token of a character that needs several."""
    first, *rest = llm.tokenizer.encode("\U0001f980", bos=False)
    assert rest
    return {first: 100.0}


def test_a_full_context_says_what_to_do_and_loses_nothing(talk, capsys):
    talk.model.params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    assert "the context of 192 tokens is full: /clear" in talk.send("Tell me a story.")
    before = [*talk.messages]
    with pytest.raises(CapacityError, match="/clear forgets the conversation, /save FILE keeps it"):
        talk.send("More!")
    assert talk.messages == before
    talk.clear()
    talk.model.params = GREEDY
    talk.send("Hello")
    assert len(talk.messages) == 2


def test_the_system_message_changes_and_survives_clear(talk, capsys):
    assert talk.system("") == "there is no system message"
    talk.system("You are brief.")
    talk.send("Hello")
    talk.system("You are a pirate.")
    assert [m["role"] for m in talk.messages] == ["system", "user", "assistant"]
    assert talk.messages[0]["content"] == "You are a pirate."
    talk.clear()
    assert talk.messages == [{"role": "system", "content": "You are a pirate."}]
    assert "pirate" in talk.system("")


def test_drafters_change_with_the_weights_kept_and_tell_tokens_per_pass(talk, capsys):
    model = talk.model.llm.model
    talk.send("Say: one two three one two three one two three")
    said = talk.model.drafter("none")
    assert talk.model.llm.model is model
    assert said.startswith("drafter none (before: mlp_speculator++recycling")
    assert "tokens per pass (tau)" in said
    talk.send("Again")
    assert talk.model.drafter("") == "drafter none, 1.00 tokens per pass (tau)"
    with pytest.raises(ForerunError, match="unknown drafter 'sufix'"):
        talk.model.drafter("sufix")
    assert talk.model.drafter("").startswith("drafter none")
    assert talk.summary().startswith("2 answers, ")
    assert ", none 1.00" in talk.summary()


def test_messages_are_saved_and_loaded(talk, llm, tmp_path, capsys):
    talk.system("You are brief.")
    talk.send("Hällo")
    path = tmp_path / "talk.json"
    assert talk.save(str(path)) == f"saved 3 messages to {path}"
    talk.send("More")
    assert "saved 5 messages" in talk.save(str(path)), "its own file is written over"
    assert json.loads(path.read_text(encoding="utf-8")) == talk.messages
    other = Conversation(LocalModel(llm, GREEDY))
    assert other.load(str(path)) == "loaded 5 messages"
    assert other.messages == talk.messages


def test_files_that_are_not_its_own_stay(talk, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="exists: name another file"):
        talk.save(str(path))
    for name, message in [
        (path, "is not JSON"),
        (tmp_path / "none", "no such file"),
        (tmp_path, "is a folder"),
    ]:
        with pytest.raises(ConfigError, match=message):
            talk.load(str(name))
    path.write_text('[{"role": "user"}]')
    with pytest.raises(ConfigError, match="not a list of messages"):
        talk.load(str(path))
    with pytest.raises(ConfigError, match=r"cannot write .*: No such file or directory$"):
        talk.save(str(tmp_path / "no" / "folder"))
    assert talk.messages == []


# Piped


def test_a_pipe_is_a_turn_a_line_without_prompts(forerun, default_model, monkeypatch):
    text = "/system Be brief.\nHello\n\nAgain\n/drafter none\nMore\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code, out, err = forerun("chat", "-m", default_model, "-n", 6, "-c", 256, "--ignore-eos")
    assert code == 0
    assert len(out.splitlines()) >= 3
    assert "> " not in out
    assert "Enter" not in err
    assert err.count("cut at 6 tokens (--max-tokens)") == 3
    assert "drafter none (before: mlp_speculator++recycling" in err
    assert err.splitlines()[-1].startswith("3 answers, 18 tokens, ")


def test_in_a_pipe_ctrl_c_ends_the_chat(forerun, default_model, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "step", interrupted)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\nAgain\n"))
    code, out, err = forerun("chat", "-m", default_model, "-c", 256)
    assert code == 130
    assert out.strip() == ""
    assert "Traceback" not in err


def test_in_a_pipe_the_first_error_ends_the_chat(forerun, default_model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("/foo\nHello\n"))
    code, out, err = forerun("chat", "-m", default_model, "-n", 6, "-c", 256)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: unknown command '/foo'")


def test_the_models_own_settings_are_used_and_can_be_overridden(
    forerun, default_model, monkeypatch
):
    seen = []

    def answer(llm, prompt, params):
        seen.append(params)
        raise ConfigError("enough")

    monkeypatch.setattr("forerun.cli.console.answer", answer)
    own = SamplingParams(temperature=0.6, top_p=0.9)
    monkeypatch.setattr(LLM, "default_params", lambda self: own)
    for options in ([], ["--temperature", "0"], ["--top-p", "1", "-n", "7"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
        forerun("chat", "-m", default_model, "-c", 256, *options)
    assert [(p.temperature, p.top_p, p.max_tokens) for p in seen] == [
        (0.6, 0.9, 512),
        (0.0, 0.9, 512),
        (0.6, 1.0, 7),
    ]


class Typed(io.StringIO):
    """A terminal's stdin."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("options", [[], ["--no-history"]])
def test_history_is_kept_unless_it_is_not_wanted(
    options, forerun, default_model, tmp_path, monkeypatch
):
    kept = []
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "forerun.cli.commands.chat.history", lambda path: kept.append(path) or nullcontext()
    )
    monkeypatch.setattr(sys, "stdin", Typed("/quit\n"))
    code, out, err = forerun("chat", "-m", default_model, *options)
    assert (code, out) == (0, "")
    assert "/help lists commands, Ctrl-D ends\n> " in err
    assert kept == ([] if options else [tmp_path / "chat_history"])


def test_a_turn_is_taken_back_and_answered_again(talk, capsys):
    talk.send("Name a colour.")
    before = [*talk.messages]
    talk.send("Name an animal.")
    (*_, question, answer) = talk.messages
    assert "the same answer as before: --temperature 0.7 gives different ones" in talk.regen()
    assert talk.messages == [*before, question, answer], "greedily it says the same"
    assert talk.undo() == "taken back: Name an animal."
    talk.messages = [*before, {"role": "user", "content": "Why?\n  line 3"}]
    assert talk.undo() == "taken back: Why? line 3"
    assert talk.messages == before
    talk.undo()
    assert talk.messages == []
    for method in (talk.undo, talk.regen):
        with pytest.raises(ConfigError, match="there is no message yet"):
            method()


def test_a_file_goes_before_the_next_message_alone(talk, tmp_path):
    (tmp_path / "a.txt").write_text("It was red.\n")
    assert "12 characters" in talk.read(str(tmp_path / "a.txt"))
    talk.send("Which colour?")
    assert talk.messages[0]["content"] == "It was red.\n\nWhich colour?"
    talk.send("Sure?")
    assert talk.messages[2]["content"] == "Sure?"
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    for name, message in (("b", "is not UTF-8 text"), ("c", "no such file")):
        with pytest.raises(ConfigError, match=message):
            talk.read(str(tmp_path / name))


def test_a_file_that_does_not_fit_can_be_taken_back(talk, tmp_path):
    talk.send("Hi")
    before = [*talk.messages]
    (tmp_path / "long.txt").write_text("word " * 300)
    assert "1,500 characters" in talk.read(str(tmp_path / "long.txt"))
    for _ in range(2):
        with pytest.raises(CapacityError, match="/undo takes back what was read"):
            talk.send("Why?")
    assert talk.undo() == "taken back: the files"
    assert talk.messages == before
    talk.send("Why?")
    assert talk.messages[2]["content"] == "Why?"


def test_a_message_that_nothing_answers_is_forgotten_in_words_and_its_file_stays(talk, tmp_path):
    """As after Ctrl-C while the prompt is read."""
    (tmp_path / "a.txt").write_text("It was red.")
    talk.read(str(tmp_path / "a.txt"))
    talk.model.params = replace(GREEDY, max_tokens=0)
    assert talk.send("Which?").endswith("\nthere is no answer: the message was removed")
    assert talk.messages == []
    talk.model.params = GREEDY
    talk.send("Which colour?")
    assert talk.messages[0]["content"] == "It was red.\n\nWhich colour?"


def test_the_line_of_an_answer_says_how_full_the_context_is(talk):
    line = talk.send("Hi")
    used = len(talk.model.llm.encode(talk.messages[:1])) + talk.num_tokens
    assert f"; context {used} of 192" in line
