"""Check the style of the pages: no sentence is too long, and words that were replaced do not come back.

`python -m dev.docs --check` runs it. The counts of `WORDS` are a ratchet: they hold what is still to be edited, and may
only shrink. `python -m dev.style` prints the present counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LONGEST = 35
"""Words of a sentence, at most; what stands in backticks is one word, and so is a list of such."""


class Word(NamedTuple):
    """A word that readers stumble over."""

    instead: str
    """What to write."""
    most: int
    """How often it may stand in the sources and pages: as often as today, less when some are gone."""


WORDS = {
    r"(?<=[\s(,|-])\.\d+(?!\d*%)": Word("the zero before the point", 0),
    r"fleets?": Word("the models, the router", 0),
    r"spellings?": Word("names of other engines, aliases", 0),
    r"riddles?": Word("say it plainly", 0),
    r"purses?": Word("budget", 0),
    r"luck": Word("chance", 0),
    r"moods?": Word("state", 0),
    r"dearer": Word("slower, more expensive", 0),
    r"beside it": Word("next to it, with it", 0),
    r"of late": Word("recently", 0),
    r"as given": Word("unchanged", 0),
    r"told by": Word("known from, chosen by", 0),
    r"holes?": Word("vulnerability, gap", 1),
    r"mended": Word("fixed", 0),
    r"nobody": Word("name who does not", 0),
    r"aloud": Word("leave it out", 0),
    r"in silence": Word("silently, without a note", 0),
    r"who asks": Word("the client", 0),
    r"(?:who|to who|for who) waits": Word("the caller", 0),
    r"lets? go(?: of)?": Word("release", 0),
    r"slips?": Word("typo, mistake", 0),
    r"strangers?": Word("others, an unknown client", 0),
    r"tellings?": Word("description", 0),
    r"whoever": Word("name it: the caller, the client", 0),
    r"doubts?": Word("uncertainty", 24),
    r"theirs": Word("name whose", 0),
    r"misspelt": Word("mistyped", 0),
    r"(?<!there )is no (?!longer\b|more\b|such\b)\w+": Word("is not a", 0),
}
"""By regular expression, without regard to case."""

_OUT = re.compile(
    r"^```.*?^```"  # fenced code
    r"|<!--.*?-->"
    r"|^ *\|[^\n]*$"  # a row of a table
    r"|^    [^\n]*$"  # indented code
    r"|^#[^\n]*$"  # a heading
    r"|^\[[^\]\n]+\]: [^\n]*$"  # the definition of a link
    r"|<[a-z/!][^<>]*>",
    re.DOTALL | re.MULTILINE,
)
_CODE = re.compile(r"`[^`]*`(?:(?:,|,? and|,? or)?\s+`[^`]*`)*")
_TARGET = re.compile(r"\]\([^()\s]*\)|\]\[[^\]]*\]")
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ", re.MULTILINE)
_END = re.compile(r"(?<=[.!?:])[)\"*]*\s+(?=[^a-z\s])|\n[ \t]*\n|\0")


def sentences(page: str) -> Iterator[tuple[int, str]]:
    """The sentences of a page in Markdown with the lines at which they begin; a colon before a capital ends one."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found[0].count("\n")

    text = _OUT.sub(blank, page)
    text = _CODE.sub(lambda found: "X" + blank(found), text)
    text = _ITEM.sub("\0", text)
    text = _TARGET.sub("", text)
    line, at = 1, 0
    for end in [*_END.finditer(text), None]:
        part = text[at : end.start() if end else None]
        yield line + part[: len(part) - len(part.lstrip())].count("\n"), " ".join(part.split())
        if end:
            line += text[at : end.end()].count("\n")
            at = end.end()


def texts() -> dict[str, str]:
    """The sources and pages that users read, by their path."""
    paths = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def count(pattern: str, found: Iterable[str]) -> int:
    """How often a word of `WORDS` stands in texts."""
    word = re.compile(rf"(?<!\w)(?:{pattern})(?!\w)", re.IGNORECASE)
    return sum(len(word.findall(text)) for text in found)


def long_sentences(page: str) -> list[str]:
    """Where a page's sentences are too long, each with its first words."""
    found = ((line, text.split()) for line, text in sentences(page))
    return [
        f"{line}: a sentence of {len(words)} words, at most {LONGEST}: {' '.join(words[:8])} ..."
        for line, words in found
        if len(words) > LONGEST
    ]


def problems(found: dict[str, str]) -> list[str]:
    """What is wrong with texts, by path; the sentences of README.md and docs/*.md alone are counted."""
    wrong = []
    for path, text in sorted(found.items()):
        if path != "README.md" and Path(path).parent != Path("docs"):
            continue
        wrong += [f"{path}:{each}" for each in long_sentences(text)]
    for pattern, word in WORDS.items():
        if (number := count(pattern, found.values())) > word.most:
            wrong.append(
                f"{number} times /{pattern}/, at most {word.most} (dev/style.py): write {word.instead}"
            )
    return wrong


def main() -> None:
    """Print how often each word of `WORDS` stands today, and how often it may."""
    found = texts()
    for pattern, word in WORDS.items():
        print(f"{count(pattern, found.values()):4} of {word.most:4}  {pattern}: {word.instead}")


if __name__ == "__main__":
    main()
