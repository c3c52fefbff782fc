"""The README of a release has no relative link left, and every file that it names exists."""

from __future__ import annotations

from dev.absolute_links import LINK, PICTURES, README, REPOSITORY, absolute


def test_the_readmes_links_become_absolute_and_lead_to_files() -> None:
    text = README.read_text(encoding="utf-8")
    made = absolute(text)
    assert len(LINK.findall(text)) > 30
    assert not LINK.findall(made)
    assert absolute(made) == made
    assert made.replace(REPOSITORY, "").replace(PICTURES, "") == text
    for _, link in LINK.findall(text):
        assert (README.parent / link.partition("#")[0]).exists(), link
