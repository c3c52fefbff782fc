"""Tokens of these tests are characters or pieces of text: id i stands for PIECES[i]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams, ThoughtMarks
from forerun.core.types import FinishReason
from forerun.decoding.stops import StopChecker

CONTROL = {"<|x|>": 0}
PIECES = ["", "a", "b", "ab", "ba", "aab", "c", "abcab"]
EOS = len(PIECES)
LONG = 1000


@dataclass
class Pieces:
    """A detokenizer; with `delay` the text of a token comes with the next one, as unfinished bytes do."""

    delay: bool = False
    held: str = field(default="", init=False)

    def push(self, token_ids: list[int]) -> str:
        text = "".join(PIECES[i] for i in token_ids)
        if self.delay:
            text, self.held = self.held, text
        return text

    def flush(self) -> str:
        text, self.held = self.held, ""
        return text

    def hidden_in(self, text: str) -> dict[str, int]:
        return {word: i for word, i in CONTROL.items() if word in text}


class Shown(NamedTuple):
    """What became of a run of tokens: how many of them count, their text, and the end."""

    num_tokens: int
    text: str
    finish_reason: FinishReason | None


def push(stream: StopChecker, tokens: Sequence[int]) -> Shown:
    texts: list[str] = []
    for token in tokens:
        texts.append(stream.push(token))
        if stream.finish_reason is not None:
            break
    return Shown(len(texts), "".join(texts), stream.finish_reason)


def checker(params: SamplingParams, max_tokens: int = LONG, *, delay: bool = False) -> StopChecker:
    return StopChecker(params, max_tokens, frozenset({EOS}), Pieces(delay))


def reference(text: str, stops: tuple[str, ...]) -> str:
    """The text before the stop string that is complete first, by trying every end."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


tokens = st.lists(st.integers(0, len(PIECES) - 1), max_size=20)
stop_strings = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3).map(tuple)


@given(tokens, stop_strings, st.booleans(), st.data())
def test_the_streamed_text_is_the_text_before_the_first_stop(
    tokens: list[int], stops: tuple[str, ...], delay: bool, data: st.DataObject
) -> None:
    stream = checker(SamplingParams(stop=stops), delay=delay)
    rest, shown, taken = [*tokens, EOS], "", 0
    while rest and stream.finish_reason is None:
        size = data.draw(st.integers(1, len(rest)))
        run, rest = rest[:size], rest[size:]
        result = push(stream, run)
        shown += result.text
        taken += result.num_tokens
        assert result.num_tokens == size or result.finish_reason is not None
        assert not any(stop in shown for stop in stops)
    text = "".join(PIECES[i] for i in tokens)
    assert shown == reference(text, stops)
    assert stream.finish_reason == FinishReason.STOP
    assert taken == stream.num_tokens


@given(tokens, stop_strings)
def test_nothing_shown_belongs_to_a_stop_string_that_comes_later(
    tokens: list[int], stops: tuple[str, ...]
) -> None:
    """After every token, what was shown is a prefix of every text that can still come out."""
    stream, shown = checker(SamplingParams(stop=stops)), ""
    for i, token in enumerate(tokens):
        shown += stream.push(token)
        text = "".join(PIECES[t] for t in tokens[: i + 1])
        for future in ("", *(stop[n:] for stop in stops for n in range(len(stop)))):
            assert reference(text + future, stops).startswith(shown)
        if stream.finish_reason:
            break


@given(tokens, stop_strings)
def test_the_tokens_end_with_the_one_that_completes_the_stop(
    tokens: list[int], stops: tuple[str, ...]
) -> None:
    result = push(checker(SamplingParams(stop=stops)), tokens)
    texts = ["".join(PIECES[t] for t in tokens[:n]) for n in range(len(tokens) + 1)]
    ends = [n for n, text in enumerate(texts) if any(stop in text for stop in stops)]
    assert result.num_tokens == (ends[0] if ends else len(tokens))
    assert (result.finish_reason is FinishReason.STOP) == bool(ends)


@given(tokens, stop_strings)
def test_kept_stops_end_the_text_and_are_named(tokens: list[int], stops: tuple[str, ...]) -> None:
    cut, kept = (
        checker(SamplingParams(stop=stops, include_stop_str_in_output=keeps))
        for keeps in (False, True)
    )
    without, whole = (push(stream, tokens) for stream in (cut, kept))
    assert whole.num_tokens == without.num_tokens
    assert cut.stop_reason == kept.stop_reason
    assert whole.text == without.text + (kept.stop_reason or "")
    assert (kept.stop_reason in stops) == (whole.finish_reason is FinishReason.STOP)


def test_the_end_tokens_text_can_be_kept() -> None:
    params = SamplingParams(stop_token_ids=(2,), include_stop_str_in_output=True)
    stream = checker(params)
    assert push(stream, [1, 2, 1]) == Shown(2, "ab", FinishReason.STOP)
    assert stream.stop_reason == 2


def test_a_stop_across_tokens_is_held_back_and_left_out() -> None:
    stream = checker(SamplingParams(stop=("abc",)))
    assert [stream.push(t) for t in (6, 1, 2)] == ["c", "", ""]
    assert push(stream, [6, 6]) == Shown(1, "", FinishReason.STOP)


def test_the_stop_that_is_complete_first_counts_then_the_longest() -> None:
    abcab = len(PIECES) - 1
    assert push(checker(SamplingParams(stop=("abca", "b"))), [abcab]).text == "a"
    assert push(checker(SamplingParams(stop=("c", "bc", "ca"))), [abcab]).text == "a"


def test_held_text_is_shown_once_it_cannot_be_a_stop() -> None:
    stream = checker(SamplingParams(stop=("abc",)))
    assert [stream.push(t) for t in (1, 2, 2)] == ["", "", "abb"]


def test_held_text_is_shown_at_the_end() -> None:
    assert push(checker(SamplingParams(stop=("abc",))), [3, EOS]).text == "ab"
    result = push(checker(SamplingParams(stop=("abc",)), max_tokens=1), [3, 3])
    assert result == Shown(1, "ab", FinishReason.LENGTH)


def test_the_end_token_counts_but_has_no_text_and_nothing_follows_it() -> None:
    assert push(checker(SamplingParams()), [1, EOS, 2]) == Shown(2, "a", FinishReason.STOP)
    stop_id = SamplingParams(stop_token_ids=(2,))
    assert push(checker(stop_id), [1, 2, 1]) == Shown(2, "a", FinishReason.STOP)


def test_an_ignored_end_token_is_like_any_other() -> None:
    params = SamplingParams(ignore_eos=True)
    result = push(StopChecker(params, LONG, frozenset({3})), [1, 3, 2])
    assert result == Shown(3, "", None)


def test_the_length_ends_a_run_in_the_middle_unless_it_stops_there_anyway() -> None:
    stream = checker(SamplingParams(), max_tokens=3)
    assert push(stream, [1]).finish_reason is None
    assert stream.tokens_left == 2
    assert push(stream, [1, 2, 1]) == Shown(2, "ab", FinishReason.LENGTH)
    assert push(checker(SamplingParams(), max_tokens=1), [EOS]).finish_reason is FinishReason.STOP
    by_text = checker(SamplingParams(stop=("b",)), max_tokens=1)
    assert push(by_text, [2]).finish_reason is FinishReason.STOP


def test_a_stop_in_the_detokenizers_last_text_counts() -> None:
    stream = checker(SamplingParams(stop=("b",)), max_tokens=2, delay=True)
    assert push(stream, [1, 2]) == Shown(2, "a", FinishReason.STOP)


def test_no_end_before_the_minimum() -> None:
    params = SamplingParams(min_tokens=3, stop=("b",))
    assert push(checker(params), [2, EOS - 1, 2]) == Shown(3, "babcab", FinishReason.STOP)
    assert push(checker(SamplingParams(min_tokens=2)), [1, EOS]).num_tokens == 2
    early = StopChecker(SamplingParams(min_tokens=3), LONG, frozenset({1}))
    assert push(early, [1, 1, 1, 1]) == Shown(3, "", FinishReason.STOP)


def test_a_sequence_that_is_cut_off_gives_its_held_text_once() -> None:
    stream = checker(SamplingParams(stop=("abc",)))
    push(stream, [3])
    assert stream.close() == "ab"
    assert stream.finish_reason is FinishReason.ABORT
    assert stream.close() == ""
    with pytest.raises(AssertionError, match="has ended"):
        stream.push(1)


def test_stop_strings_need_a_detokenizer() -> None:
    with pytest.raises(RequestError, match="stop strings need a tokenizer"):
        StopChecker(SamplingParams(stop=("a",)), LONG, frozenset())


@pytest.mark.parametrize("keeps_end", [False, True])
@pytest.mark.parametrize(
    ("stop", "tokens", "text"),
    [
        ("<|x|>", [1, 0, 2], "a"),
        (
            "<|x|>b",
            [1, 0, 6, 0, 2],
            "ac",
        ),  # one that goes on otherwise stops nothing, and is not shown
        ("b<|x|>", [1, 2, 6, 4, 2, 0, 1], "abcba"),
        ("<|x|><|x|>", [0, 1, 0, 0], "a"),
    ],
)
def test_a_stop_string_finds_control_tokens_that_are_not_shown(
    stop: str, tokens: list[int], text: str, keeps_end: bool
) -> None:
    params = SamplingParams(stop=("zz", stop), include_stop_str_in_output=keeps_end)
    stream = checker(params)
    assert push(stream, tokens).text == text + (stop if keeps_end else "")
    assert (stream.finish_reason, stream.stop_reason) == (FinishReason.STOP, stop)


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("end", ["stop", "length", "abort", "token"])
@given(st.lists(st.integers(0, EOS - 1), max_size=12), st.integers(0, 14))
def test_no_way_to_the_text_shows_what_stands_for_control_tokens(
    delay: bool, end: str, tokens: list[int], min_tokens: int
) -> None:
    stop = "<|x|>" if end == "stop" else "<|x|>never"
    params = SamplingParams(stop=(stop,), min_tokens=min_tokens if end != "token" else 0)
    stream = checker(params, len(tokens) if end == "length" else LONG, delay=delay)
    shown = push(stream, [*tokens, EOS] if end == "token" else tokens).text + stream.close()
    plain = "".join(PIECES[token] for token in tokens)
    assert plain.startswith(shown) if end == "stop" else shown == plain


def test_a_time_ends_a_text_at_the_end_of_a_line(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("forerun.decoding.stops.time.perf_counter", lambda: now[0])
    for pieces, length in ((["a", "\n", "b", "c"], 3), (["a", "b", "c", "\n"], 4)):
        now[0] = 0.0
        stops = StopChecker(SamplingParams(t_max_predict_ms=1500), 99, frozenset(), Texts(pieces))
        count = 0
        while stops.finish_reason is None:
            stops.push(count)
            now[0], count = now[0] + 1.0, count + 1
        assert (count, stops.finish_reason) == (length, FinishReason.LENGTH)


class Texts:
    """A detokenizer of a text for every token."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def push(self, token_ids: list[int]) -> str:
        return "".join(self.pieces[i] for i in token_ids)

    def flush(self) -> str:
        return ""

    def hidden_in(self, text: str) -> dict[str, int]:
        return {}


TAGS = ThoughtMarks("<think>", ("</think>",))
BEGUN = ThoughtMarks("<think>", ("</think>",), has_begun=True)
ANALYSIS = "<|channel|>analysis<|message|>Q: a<|end|><|start|>assistant"
CHANNELS = ThoughtMarks("", ("<|channel|>final", "<|channel|>commentary"), True, again="<|start|>")


@pytest.mark.parametrize(
    ("marks", "text", "stops", "expected"),
    [
        (TAGS, "<think>Q: a\n\n</think>\n\nYes Q: b", ("Q:", "\n\n"), "<think>Q: a\n\n</think>\n\nYes "),
        (TAGS, " \n<think>Q:</think>Q:", ("Q:",), " \n<think>Q:</think>"),
        (TAGS, "Yes Q: b", ("Q:",), "Yes "),
        (TAGS, "<th Q: b", ("Q:",), "<th "),
        (TAGS, "\n\nYes", ("\n\n",), ""),
        (BEGUN, "Q:</thin Q:</think>\n\nQ: b", ("Q:", "\n\n"), "Q:</thin Q:</think>\n\n"),
        (BEGUN, "Q: a</think>\n\nYes", ("</think>",), "Q: a"),
        (BEGUN, "Q: never closed", ("Q:",), "Q: never closed"),
        (BEGUN, "Q: never closed </th", ("Q:",), "Q: never closed </th"),
        (CHANNELS, f"{ANALYSIS}<|channel|>final<|message|>b Q: c", ("Q:", "assistant"),
         f"{ANALYSIS}<|channel|>final<|message|>b "),
        (CHANNELS, "<|channel|>commentary<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>Q: b",
         ("Q:", "assistant"), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_stop_strings_count_behind_the_thought(marks, text, stops, expected, size) -> None:
    params = SamplingParams(stop=stops, stop_behind=marks)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    words = Pieces()
    words.push = lambda token_ids: "".join(pieces[i] for i in token_ids)  # type: ignore[method-assign]
    stream, shown = StopChecker(params, LONG, frozenset(), words), ""
    for i in range(len(pieces)):
        shown += stream.push(i)
        if stream.finish_reason is not None:
            break
    shown += stream.close()
    assert shown == (text if expected is None else expected)
    assert isinstance(stream.stop_reason, str) == (shown != text)
