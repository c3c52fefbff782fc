"""README and the pages have one figure for one thing: a speed-up is the README's own, or says when it was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev import readme_table

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}
CODE = re.compile(r"^```.*?^```|^    [^\n]*$|`[^`]*`", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"(?<![\w.])(\d+\.\d+)x\b")
"""A speed-up, such as 2.51x."""
TIMES = re.compile(r"(?<![\w.])(\d+\.\d+) times\b")
"""The same in words; where drafting is not the subject it may be anything."""
DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b|\b\d{1,2} [A-Z][a-z]+ \d{4}\b")
LINK = re.compile(r"\]\([^)\s]+\)|\]\[[^\]]+\]")
START = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")
"""Where a paragraph or an item of a list ends and another begins."""


def known() -> set[str]:
    """The README's table: every figure that a page may quote."""
    table = readme_table.work(ROOT / "benchmarks" / "2026-11-28-zen4")
    return set(FIGURE.findall(table))


def figures(part: str) -> list[str]:
    """The speed-ups of a paragraph."""
    in_words = TIMES.findall(part) if re.search(r"\bdrafting\b", part, re.IGNORECASE) else []
    return FIGURE.findall(part) + in_words


def unknown(text: str) -> list[str]:
    """Speed-ups that are neither the README's nor in a paragraph with a date and a link."""
    ours = known()
    return [
        figure
        for part in START.split(CODE.sub("", text))
        if not (DATE.search(part) and LINK.search(part))
        for figure in figures(part)
        if figure not in ours
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_figure_of_a_page_is_the_readmes_or_has_a_date_and_a_link(page):
    assert not unknown(PAGES[page]), f"write the README's figure in {page}, or a date and a link"


def test_the_readme_shows_the_table_that_pages_quote():
    assert "<!-- work: benchmarks/2026-11-28-zen4 -->" in PAGES["README.md"]
    assert len(known()) == len(readme_table.WORK)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Edits gain 2.51x.", []),
        ("Edits gain 2.6x, agents 2.50x.", ["2.6"]),
        ("Drafting is 2 to 3.5 times as fast.", ["3.5"]),
        ("A pass of 8 rows takes 1.4 times as long.", []),
        ("- Edits gain 2.51x.\n- Edits gained 2.16x (22 November 2026, [log](LOG.md)).", []),
        ("- Edits gained 2.16x ([log](LOG.md)).\n- On 22 November 2026 nothing.", ["2.16"]),
        ("| edits | 2.16x |", ["2.16"]),
        ("`engine tau 1.52, 1.10x`\n\n    edits 1.10x\n", []),
    ],
)
def test_a_second_figure_is_found(text, wrong):
    assert unknown(text) == wrong


def test_a_table_of_two_builds_is_refused(tmp_path):
    for path in (ROOT / "benchmarks" / "2026-11-28-zen4").glob("*.jsonl"):
        text = path.read_text(encoding="utf-8")
        if path.name == "schema.jsonl":
            text = re.sub(r'"commit": "[^"]*"', '"commit": "another"', text, count=1)
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="differ in one of"):
        readme_table.work(tmp_path)
