"""The first minute: what README and quickstart type shows drafts being accepted, and an answer that makes sense."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/*.py"))


def commands(page: str) -> list[str]:
    """The commands of a page's plain code blocks, without their comments."""
    blocks = re.findall(
        r"^```\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line.removeprefix(".venv/bin/") for line in lines if "forerun " in line]


def test_the_first_command_answers_and_accepts_drafts(forerun):
    firsts = {
        next(line for line in commands(page) if "generate" in line)
        for page in ("README.md", "docs/quickstart.md")
    }
    (first,) = {re.sub(" +", " ", line) for line in firsts}
    prompt = re.search(r'"(.*)"', first)
    assert prompt is not None
    code, out, err = forerun("generate", prompt[1])
    assert code == 0
    assert "photosynthesis is" in out.lower()  # sampled: the words differ
    told = re.search(
        r"mlp_speculator\+\+recycling: ([\d.]+) tokens per pass \(tau\), accepted (\d+) of (\d+)",
        err,
    )
    assert told is not None, err
    assert 0 < int(told[2]) < int(told[3])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_their_drafts_are_accepted(example, default_model, capsys):
    runpy.run_path(str(example))
    out = capsys.readouterr().out
    if example.stem == "stream":
        assert re.search(r"\[ ?\w+\]", out), "no tinted token"
    else:
        assert max(float(tau) for tau in re.findall(r"([\d.]+) tokens per pass", out)) > 1
