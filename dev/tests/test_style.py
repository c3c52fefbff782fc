"""The check of style finds a long sentence and a word that was replaced, and what it leaves out is left out."""

from __future__ import annotations

import pytest

from dev import style

LONG = " ".join(["Word", *["word"] * style.LONGEST]) + "."
SHORT = " ".join(["Word", *["word"] * (style.LONGEST - 1)]) + "."


def test_the_pages_and_sources_of_today_pass() -> None:
    assert style.problems(style.texts()) == []


def test_a_planted_long_sentence_is_found_with_its_line() -> None:
    page = f"# A page\n\nA short one. {SHORT}\n\n- An item.\n- Another\n  line. {LONG}\n"
    (found,) = style.problems({"docs/page.md": page})
    assert found.startswith(f"docs/page.md:7: a sentence of {style.LONGEST + 1} words")


@pytest.mark.parametrize(
    "text",
    [
        f"```\n{LONG}\n```\n",
        f"Run this:\n\n    {LONG}\n",
        f"| a | b |\n|---|---|\n| {LONG} | 1 |\n",
        f"- An item:\n\n  | {LONG} |\n",
        f"It is `{LONG}`, which is one word.",
        f"<!-- {LONG} -->",
        f"{SHORT}\n\n{SHORT}",
        f"- {SHORT}\n- {SHORT}",
        f"{SHORT[:-1]}: {SHORT.capitalize()}",
        f"[{SHORT[:-1]}](page.md#a-b-c).",
    ],
)
def test_code_tables_and_the_ends_of_items_make_no_sentence_long(text: str) -> None:
    assert style.long_sentences(text) == []


@pytest.mark.parametrize("path", ["docs/internals/page.md", "src/forerun/core/new.py", "README.md"])
def test_a_planted_word_is_found_wherever_it_stands(path: str) -> None:
    texts = style.texts()
    texts[path] = texts.get(path, "") + "\nA Riddle.\n"
    (found,) = style.problems(texts)
    assert "riddle" in found
    assert style.WORDS["riddles?"].instead in found


def test_one_more_of_a_word_that_is_still_there_is_found() -> None:
    texts = style.texts()
    texts["docs/new.md"] = "fleet\n" * (style.WORDS["fleets?"].most + 1)
    assert any("fleets?" in each for each in style.problems(texts))
