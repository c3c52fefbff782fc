"""What the documentation quotes of the code is what the code says: constants and defaults, options, files."""

from __future__ import annotations

import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dev import docs
from forerun.compat import engine as spellings
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.decoding import calls
from forerun.engine import controller, proposer
from forerun.lab.bench import summary
from forerun.server.config import ServerConfig

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
NUMBERS = {3: "three", 5: "five"}
llama, gguf = (
    import_module(f"forerun.lab.bench.peers.{name}") for name in ("llama_cpp", "transformers")
)

QUOTED = [
    ("docs/internals/controller.md", f"`{controller.MARGIN:g} rate ask(k)`"),
    ("docs/internals/controller.md", f"the median of the last {controller.LAST_PASSES} passes"),
    ("docs/internals/controller.md", f"a plain pass after {controller.PLAIN_EVERY} steps"),
    ("docs/internals/controller.md", f"tried for {100 * controller.EXPLORATION:g} % of the time"),
    ("docs/internals/controller.md", f"After {NUMBERS[proposer.MAX_ERRORS]} errors"),
    ("docs/python.md", f"temperature {SamplingParams().temperature:g}, at most"),
    ("docs/python.md", f"at most {SamplingParams().max_tokens} new tokens"),
    ("docs/measuring.md", f"a bootstrap over prompts: {summary.RESAMPLES} resamples"),
    ("docs/measuring.md", f"nodes a step ({EngineConfig().draft_budget})"),
    ("docs/serving.md", f"every {1000 * ServerConfig().stream_interval:g} ms at most"),
    ("docs/http-api.md", f"at most {calls.MAX_CALLS} in sequence"),
    ("docs/measuring.md", f"n-grams of up to {llama.LOOKUP_NGRAM}, {llama.LOOKUP_TOKENS} tokens"),
    ("docs/measuring.md", f"up to {llama.DRAFT_TOKENS} tokens while the draft model"),
    ("docs/measuring.md", f"probability is at least {100 * llama.DRAFT_SURENESS:g} %"),
    ("docs/measuring.md", f"`prompt_lookup_num_tokens` {gguf.LOOKUP_TOKENS}"),
]
"""Words of a page with the code's own numbers in them."""


@pytest.mark.parametrize(("page", "words"), QUOTED, ids=[words for _, words in QUOTED])
def test_a_number_in_the_documentation_is_the_codes(page, words):
    assert words in " ".join(TEXTS[page].split())


def test_the_readmes_commands_find_what_make_demo_installed():
    """`make demo` comes first there; `forerun serve` needs an extra."""
    assert ".venv/bin/forerun serve " in TEXTS["README.md"]
    assert "--editable '.[serve]'" in (ROOT / "Makefile").read_text(encoding="utf-8")


@cache
def commands() -> dict[tuple[str, ...], Any]:
    """Every command by its words."""
    return {tuple(name.split()): command for name, command in docs.commands().items()}


def flags(command: Any) -> set[str]:
    """All names of a command's options."""
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {
        *("-h", "--help", "-V", "--version")
    }


def typed_commands(text: str) -> list[list[str]]:
    """Lines of code blocks that run forerun, as words."""
    blocks = re.findall(r"```\w*\n(.*?)```|((?:^    [^\n]*\n)+)", text, re.DOTALL | re.MULTILINE)
    joined = "\n".join("".join(block) for block in blocks).replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        typed = re.match(r"\s*(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?forerun (.*)", line)
        if typed and "..." not in line:
            words = shlex.split(typed[1], comments=True)
            ends = (i for i, word in enumerate(words) if re.fullmatch(r"[|<>&]+", word))
            found.append(words[: next(ends, None)])
    return found


@pytest.mark.parametrize("page", TEXTS)
def test_the_commands_of_a_page_have_these_options(page):
    for words in typed_commands(TEXTS[page]):
        if not words or words[0].startswith("-"):
            continue
        path = tuple(words[:2]) if tuple(words[:2]) in commands() else (words[0],)
        assert path in commands(), f"there is no command {words}"
        command = commands()[path]
        for word in words:
            name = word.partition("=")[0]
            if not re.fullmatch(r"--?[a-z][\w-]*", name):
                continue
            known = name in flags(command)
            assert known, f"{name} is not an option of forerun {' '.join(path)}"


OTHERS = {
    *(
        "--target",
        "--config",
        "--build",
        "--editable",
        "--no-deps",
        "--check",
        "--extra-index-url",
        "--oss",
    ),
    *(
        "--without-lab",
        "--without-torch",
        "--all-extras",
        "--headless",
        "--rounds",
        "--gguf",
        "--nproc-per-node",
        "--cov",
        "--cpu",
        "--edit-format",
        "--data",
        "--processor",
        "--backend",
    ),
}
"""Flags of other programs that pages name."""


@pytest.mark.parametrize("page", [page for page in TEXTS if page != "docs/compatibility.md"])
def test_the_flags_that_a_page_names_exist(page):
    known = OTHERS.union(*(flags(command) for command in commands().values()))
    for name in re.findall(r"`(--[a-z][\w-]*)", TEXTS[page]):
        is_known = name in known or name.replace("--no-", "--") in known
        assert is_known or spellings.is_known(name), name


@pytest.mark.parametrize("page", [page for page in TEXTS if page != "docs/cli.md"])
def test_the_files_and_constants_that_a_page_names_exist(page):
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    for name in re.findall(r"`([\w/]+/[\w/]+\.(?:py|h|cpp))`", TEXTS[page]):
        candidates = [ROOT / name, ROOT / "src/forerun" / name, ROOT / "src" / name]
        assert any(candidate.exists() for candidate in candidates), f"{name} is not there"
    for name in re.findall(r"`([A-Z]+_[A-Z_]+)`", TEXTS[page]):
        assert re.search(rf"\b{name}\b", sources), f"{name} is not a name of the code"
