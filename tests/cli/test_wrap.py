"""A streamed text in a terminal: its words stay whole, and nothing of it is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from forerun.cli.wrap import WordWrap


def wrapped(pieces: list[str], width: int | None, style: str = "{}") -> str:
    wrap = WordWrap(width)
    return "".join(wrap.push(piece, style) for piece in pieces) + wrap.flush()


PIECES = st.lists(st.text("ab \n\t漢é.", max_size=9), max_size=30)


@given(PIECES, st.integers(1, 20))
def test_only_spaces_become_line_ends_and_nothing_is_lost(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    assert "".join(wrapped(pieces, width).split()) == "".join(text.split())
    assert wrapped(pieces, None) == text


@given(PIECES, st.integers(9, 20))
def test_words_that_fit_stay_whole_and_lines_within_the_width(
    pieces: list[str], width: int
) -> None:
    words = [word for word in "".join(pieces).split() if "漢" not in word]
    lines = wrapped([f"{word} " for word in words], width).split("\n")
    short = [word for word in words if len(word) <= width]
    if short == words:
        assert " ".join(lines).split() == words
        assert all(cell_len(line) <= width for line in lines)


def test_a_word_of_several_pieces_is_not_broken_and_pieces_keep_their_style() -> None:
    assert wrapped(["the riv", "er runs"], 8) == "the \nriver \nruns"
    assert wrapped(["the riv", "er"], 8, "<{}>") == "<the>< >\n<riv><er>"


def test_text_without_spaces_does_not_wait() -> None:
    wrap = WordWrap(20)
    assert wrap.push("漢字") == "漢字"
    assert wrap.push("a" * 21) == "a" * 21
