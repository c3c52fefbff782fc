"""Tokenizers of GGUF files: the ids llama.cpp gives, and text that comes back whole, at once or piece by piece."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import PreTokenizer

from forerun.core.errors import LoadError, RequestError
from forerun.hub import names
from forerun.text.gguf_tokenizer import tokenizer_from_gguf
from forerun.text.pieces import byte_level_piece
from forerun.text.pretokenizers import _BY_NAME, LINES, pre_tokenizer
from forerun.text.tokenizer import LONG_TEXT, TextStream, Tokenizer
from forerun.weights.checkpoint import open_checkpoint
from tests.weights.files import byte_alphabet, byte_level_vocabulary, matrix, write_gguf

FIXTURES = Path(__file__).parent / "fixtures"
QWEN = ("qwen2.5-coder-0.5b-instruct-q4_k_m", "qwen2.5-coder-1.5b-instruct-q4_k_m")


def small(folder: Path, kind: str, **options: str) -> Tokenizer:
    path = folder / f"{kind}.gguf"
    write_gguf(path, {"w": matrix(2, 2)}, tokenizer=kind, **options)
    return open_checkpoint(path).tokenizer()


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small(tmp_path_factory.mktemp("byte_level"), "gpt2")


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small(tmp_path_factory.mktemp("sentencepiece"), "llama")


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    fixture = request.getfixturevalue(
        {"gpt2": "byte_level", "llama": "sentencepiece"}[request.param]
    )
    assert isinstance(fixture, Tokenizer)
    return fixture


@pytest.fixture(scope="module")
def smollm2(default_model: Path) -> Tokenizer:
    return open_checkpoint(default_model).tokenizer()


# Against the recordings


def assert_ids_equal_the_recording(tokenizer: Tokenizer, name: str) -> None:
    recording = json.loads((FIXTURES / f"token_ids_{name}.json").read_text(encoding="utf-8"))
    assert len(recording["cases"]) > 200
    for case in recording["cases"]:
        text, ids = case["text"], case["ids"]
        assert tokenizer.encode(text, bos=False) == ids, text
        assert tokenizer.decode(ids, skip_special=False) == text


def test_smollm2s_ids_equal_llama_cpps(smollm2: Tokenizer) -> None:
    assert_ids_equal_the_recording(smollm2, "smollm2")


def test_qwens_ids_equal_llama_cpps() -> None:
    paths = [names.cache_dir() / f"{name}.gguf" for name in QWEN]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        pytest.skip(f"no Qwen2.5 GGUF in the cache: put {paths[0].name} into {paths[0].parent}")
    tokenizer = open_checkpoint(path).tokenizer()
    assert_ids_equal_the_recording(tokenizer, "qwen25")
    assert tokenizer.vocab_size == 151665, "the ids padded to 151936 are no tokens"
    assert tokenizer.token_bytes(151665) is None


def test_smollm2s_special_tokens_and_template(smollm2: Tokenizer) -> None:
    ends = {smollm2.encode(text)[0] for text in ("<|endoftext|>", "<|im_end|>", "<reponame>")}
    assert smollm2.eos_ids == ends
    assert (smollm2.vocab_size, smollm2.bos_id) == (49152, 1)
    text = smollm2.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


# Laws


def any_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30)


@given(data=st.data(), skip_special=st.booleans(), is_start=st.booleans())
def test_streamed_text_equals_the_text_decoded_at_once(
    tokenizer: Tokenizer, data: st.DataObject, skip_special: bool, is_start: bool
) -> None:
    ids = data.draw(any_ids(tokenizer))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    stream = TextStream(tokenizer, skip_special=skip_special, is_start=is_start)
    runs = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    text = "".join([*map(stream.push, runs), stream.flush()])
    assert text == tokenizer.decode(ids, skip_special=skip_special, is_start=is_start)


@given(text=st.text(max_size=40) | st.text(alphabet=" \u2581\n<s>unk0x41he", max_size=20))
@example("\u2581")
@example("<s>he<0x41>")
def test_text_comes_back_from_its_ids(tokenizer: Tokenizer, text: str) -> None:
    """SentencePiece writes a space as U+2581, so one in the text comes back as a space, as in llama.cpp."""
    ids = tokenizer.encode(text, bos=False, special=False)
    expected = text.replace("\u2581", " ") if tokenizer.adds_space else text
    assert tokenizer.decode(ids) == tokenizer.decode(ids, skip_special=False) == expected


@given(text=st.text(alphabet="helo w<|im_end|>tol\n", max_size=40))
def test_without_special_no_control_token_is_read(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text + "<|im_end|></s>", special=False, bos=False)
    assert not any(map(tokenizer.is_special, ids))
    assert tokenizer.decode(ids) == text + "<|im_end|></s>"


@given(
    data=st.binary(),
    text=st.text(st.characters(min_codepoint=0x144, exclude_categories=["Cs"]), min_size=1),
)
@example(data=bytes(range(256)), text="\uffff")
def test_the_letters_of_bytes_stand_for_them_and_all_others_for_themselves(
    data: bytes, text: str
) -> None:
    alphabet = byte_alphabet()
    written = "".join(alphabet[byte] for byte in data)
    assert byte_level_piece(written) == data
    for other in (text, " ", "\xad\n"):
        assert byte_level_piece(written + other) == (written + other).encode()


@given(data=st.data())
def test_text_decodes_to_the_bytes_of_its_tokens(
    byte_level: Tokenizer, data: st.DataObject
) -> None:
    ids = data.draw(any_ids(byte_level))
    pieces = [byte_level.token_bytes(i) or b"" for i in ids]
    assert byte_level.decode(ids, skip_special=False) == b"".join(pieces).decode(errors="replace")


# Byte-level BPE


def test_a_byte_level_vocabulary_stands_for_bytes(byte_level: Tokenizer) -> None:
    assert [byte_level.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    tokens, _, _ = byte_level_vocabulary()
    assert byte_level.token_bytes(tokens.index("hello")) == b"hello"
    assert byte_level.token_bytes(tokens.index("Ġwo")) == b" wo"
    assert byte_level.token_bytes(tokens.index("[PAD260]")) is None
    assert byte_level.token_bytes(len(tokens)) is None
    assert byte_level.token_bytes(-1) is None
    assert byte_level.vocab_size == tokens.index("[PAD260]")


def test_smollm_splits_digits_before_merging_and_gpt2_does_not(tmp_path: Path) -> None:
    tokens, _, _ = byte_level_vocabulary()
    one, two, both = (tokens.index(text) for text in ("1", "2", "12"))
    assert small(tmp_path, "gpt2", pre="smollm").encode("12") == [one, two]
    assert small(tmp_path, "gpt2", pre="gpt-2").encode("12") == [both]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("smollm", "it's 123  x", ["it", "'s", " ", "1", "2", "3", " ", " x"]),
        ("gpt-2", "it's 123  x\n\n", ["it", "'s", " 123", " ", " x", "\n\n"]),
        ("qwen2", "(it'S 12!\n\n  x", ["(it", "'S", " ", "1", "2", "!\n\n", " ", " x"]),
        ("llama-bpe", "a12345", ["a", "123", "45"]),
        ("tekken", "aFewWords 12", ["a", "Few", "Words", " ", "1", "2"]),
        ("gpt-4o", "we'll 1234/", ["we'll", " ", "123", "4", "/"]),
        ("falcon", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("default", "a-12345", ["a", "-", "123", "45"]),
        ("qwen35", "हिन्दी 12", ["हिन्दी", " ", "1", "2"]),
        ("qwen2", "हि", ["ह", "ि"]),
        ("deepseek-coder", "if x1:\n\t日本", ["if", " x", "1", ":", "\n", "\t", "日本"]),
        ("deepseek-llm", "a b12 μ:) ք", ["a", " b", "12", " μ", ":)", " ք"]),
        ("seed-coder", "a!\n", ["a", "!", "\n"]),
        ("kimi-k2", "日本 x’s 1234", ["日本", " x", "’s", " ", "123", "4"]),
        ("afmoe", "a1234567", ["a", "1", "234", "567"]),
        ("tiny_aya", "aB 12345", ["a", "B", " ", "12", "345"]),
        ("superbpe", "in a 12345", ["in a ", "12", "345"]),
        ("exaone-moe", "two words 1", ["two words", " ", "1"]),
        ("viking", "ja, 12", ["ja", ",", " ", "1", "2"]),
        ("minicpm5", "a1234", ["a", "123", "4"]),
    ],
)
def test_a_pre_tokenizer_cuts_words(name: str, text: str, words: list[str]) -> None:
    cut = pre_tokenizer(name).build().pre_tokenize_str(text)
    table = {character: byte for byte, character in enumerate(byte_alphabet())}
    assert [bytes(map(table.get, word)).decode() for word, _ in cut] == words  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pre_tokenizers() -> list[PreTokenizer]:
    return [rule.build() for rule in {pre_tokenizer(name) for name in _BY_NAME}]


@settings(max_examples=20, deadline=None)
@given(st.text())
@example("don't ABCdef12345 \n\n ไทย हिन्दी 日本語 😀\u0301\r\n  x")
def test_no_pre_tokenizer_loses_text(pre_tokenizers: list[PreTokenizer], text: str) -> None:
    for one in pre_tokenizers:
        cut = one.pre_tokenize_str(text)
        ends = [end for _, (_, end) in cut]
        assert [start for _, (start, _) in cut] == [0, *ends][:-1] if text else not cut
        assert [*ends, len(text)][-1] == len(text)


@pytest.mark.parametrize("name", LINES)
def test_lines_are_found_by_the_pre_tokenizers_name_too(name: str) -> None:
    tokens = ["<bos>", "▁", "a", "▁a", "\n", "\n\n", "<0x0A>"]
    fields = {"model": "gpt2", "pre": name, "tokens": tokens, "merges": ["▁ a"], "bos_token_id": 0}
    tokenizer = tokenizer_from_gguf(
        {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    )
    assert tokenizer.encode("a a\n\n", bos=False) == [2, 3, 5]


def test_user_defined_tokens_are_text_and_control_tokens_are_not(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("hello<tool>hello<|im_end|>")
    assert len(ids) == 4
    assert [byte_level.is_special(i) for i in ids] == [False, False, False, True]
    assert byte_level.decode(ids) == "hello<tool>hello"
    assert byte_level.decode(ids, skip_special=False) == "hello<tool>hello<|im_end|>"
    assert len(byte_level.eos_ids) == 2


def test_a_file_says_what_stands_behind_a_text() -> None:
    fields = {"model": "gpt2", "tokens": ["a", "b"], "eos_token_id": 1, "add_eos_token": True}
    tokenizer = tokenizer_from_gguf(
        {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    )
    assert (tokenizer.encode("a"), tokenizer.suffix_ids) == ([0], (1,))


# SentencePiece BPE


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("hello wo é")
    pieces = [sentencepiece.token_bytes(i) for i in ids]
    assert pieces == [b"<s>", b" hello", b" wo", b" ", b"\xc3", b"\xa9"]
    assert sentencepiece.decode(ids) == "hello wo é"
    assert sentencepiece.decode(ids, is_start=False) == " hello wo é"
    assert sentencepiece.eos_ids == {2}


def gemma4(kind: str) -> Tokenizer:
    """One vocabulary as Gemma 4's files spell it, or as SentencePiece's: merges, or scores."""
    words = [
        "\u2581",
        "h",
        "e",
        "l",
        "o",
        "w",
        "he",
        "ll",
        "hell",
        "hello",
        "\u2581w",
        "\u2581wo",
        "\n",
        "\n\n",
    ]
    merges = ["h e", "l l", "he ll", "hell o", "\u2581 w", "\u2581w o", "\n \n"]
    order = [merge.replace(" ", "") for merge in merges]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{i:02X}>" for i in range(256)), *words]
    metadata = {
        "model": kind,
        "tokens": tokens,
        "token_type": [3, 3, 3, 2, *[6] * 256, *[1] * len(words)],
        "scores": [-float(order.index(token)) if token in order else -1e3 for token in tokens],
        "merges": merges if kind == "gemma4" else None,
        "add_space_prefix": False,
        **{f"{name}_token_id": i for i, name in enumerate(("padding", "eos", "bos", "unknown"))},
    }
    return tokenizer_from_gguf({f"tokenizer.ggml.{k}": v for k, v in metadata.items()})


@given(st.text(st.sampled_from("helo w\u00e9\n"), max_size=24))
@example("hello world")
@example("\n\n hello\n")
def test_merges_of_a_file_are_those_of_the_scores(text: str) -> None:
    tokenizer = gemma4("gemma4")
    ids = tokenizer.encode(text)
    assert ids == [2, *gemma4("llama").encode(text, bos=False)]
    assert tokenizer.decode(ids) == text


def test_runs_of_line_breaks_are_cut_from_the_lines() -> None:
    tokenizer = gemma4("gemma4")
    ids = tokenizer.encode("hello\n\n\nwo", bos=False)
    pieces = [tokenizer.token_bytes(i) for i in ids]
    assert pieces == [b"hello", b"\n\n", b"\n", b"w", b"o"]


# BOS


def test_bos_is_added_as_the_model_wants_or_as_asked(
    byte_level: Tokenizer, sentencepiece: Tokenizer
) -> None:
    assert sentencepiece.encode("he")[0] == sentencepiece.bos_id == 1
    assert 1 not in sentencepiece.encode("he", bos=False)
    assert byte_level.encode("he") == byte_level.encode("he", bos=False)
    with pytest.raises(RequestError, match="no BOS token"):
        byte_level.encode("he", bos=True)


# Errors


def test_text_that_is_not_unicode_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        byte_level.encode("\ud800")


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "none.gguf", {"w": matrix(2, 2)})
    with pytest.raises(LoadError, match=r"none.gguf: there is no tokenizer"):
        open_checkpoint(path).tokenizer()


def test_an_unknown_pre_tokenizer_is_refused_with_the_closest(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="unknown pre-tokenizer 'smolm': did you mean 'smollm'"):
        small(tmp_path, "gpt2", pre="smolm")


def test_an_unknown_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "bert.gguf", {"w": matrix(2, 2)}, strings={"tokenizer.ggml.model": "bert"}
    )
    with pytest.raises(LoadError, match="unknown tokenizer 'bert'"):
        open_checkpoint(path).tokenizer()


@pytest.mark.parametrize("special", [True, False])
def test_a_long_text_has_the_tokens_of_its_parts(smollm2: Tokenizer, special: bool) -> None:
    part = " One fox<|im_end|> jumped."
    ids = smollm2.encode(part, special=special)
    assert smollm2.encode(part * LONG_TEXT, special=special) == ids * LONG_TEXT


def test_other_threads_run_while_a_long_text_is_encoded(smollm2: Tokenizer) -> None:
    text = " One fox jumped over 12 dogs." * 20_000
    done, longest_s, last_s = threading.Event(), 0.0, time.perf_counter()

    def encode() -> None:
        smollm2.encode(text)
        done.set()

    thread = threading.Thread(target=encode)
    start_s = time.perf_counter()
    thread.start()
    while not done.wait(0.001):
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    thread.join()
    assert longest_s < 0.5 * (time.perf_counter() - start_s)
