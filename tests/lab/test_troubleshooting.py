"""The troubleshooting page and the errors of the code: no entry is stale, no error is without an answer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from forerun.core import errors

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "forerun"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")

REMEDY = re.compile(
    r"\b(must|needs?|give|take|leave|choose|name|make|say|run|write|save|delete|ask|allow|allowed|start)\b"
    r"|draft fewer|not both|given twice|exclude each other|did you mean|forerun [a-z]+"
    r"|only .*supported|not supported|; "
)
"""A message with such words says itself what is allowed or what to do, and needs no entry."""
OF_FILES = (
    *(
        "drafters/",
        "drafters/base/networks/",
        "weights/",
        "model/arch/",
        "model/packing.py",
        "model/config.py",
    ),
    *(
        "model/backends/native.py",
        "model/loader.py",
        "parallel/split.py",
        "text/gguf",
        "text/hf_tokenizer.py",
        "text/added_tokens.py",
        "system/opened.py",
    ),
)
OF_ALL_DRAFTERS = tuple(
    f"drafters/base/{path.name}"
    for path in (SRC / "drafters" / "base").glob("*.py")
    if path.name != "trimmed.py"
)
"""What methods share reads options, not files; its `networks` and its folders of trimmed heads are files."""
OF_THE_LABORATORY = ("lab/",)
"""Where files and measurements are read: what is wrong with one has an entry together."""
PLAIN = {
    "/... takes no argument, got ...",
    "... is not a list of messages with role and content",
    "there is no message yet",
    "... is empty",
    "... is a folder, not a text file",
    "whitespace_pattern belongs to json and json_object",
    "draft_vocab=... is more than the ... tokens of the vocabulary",
    "drafter '...': ...",
    "a ... is built: it takes no option '...'",
    "token id ... is not in the vocabulary of ...",
    "... prompts but ... sampling params",
    "... holds no prompts",
    "... could not be fetched (...): ...",
    "cache row ... of slot ... does not exist: it has ... rows",
    "RANK, WORLD_SIZE and LOCAL_WORLD_SIZE are torchrun's: ...",
    "--json-schema ...",
    "..., not ...",
    "... is not an OpenAI server: /models is ...",
    "... serves no model",
    "the API key is empty",
    "no such option in engine or server: ...",
    'a conversation is a list of {"role": ..., "content": ...}, got ...',
    "a prompt is text, token ids, chat messages or a dictionary, got ...",
    "the text is not valid Unicode: it holds a lone surrogate",
    "... takes more than ... s",
}
"""Messages that need no entry though they have none of those words: the mistake is the remedy."""


def text(node: ast.AST) -> str:
    """A text in the code; `...` for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return text(node.left) + text(node.right)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value.replace("%s", "...") if is_text else "..."


@cache
def nodes() -> tuple[tuple[str, ast.AST], ...]:
    """Every node of the code, with its file."""
    files = [(str(path.relative_to(SRC)), path) for path in SRC.rglob("*.py")]
    trees = ((name, ast.parse(path.read_text("utf-8"))) for name, path in files)
    return tuple((name, node) for name, tree in trees for node in ast.walk(tree))


def kinds() -> set[str]:
    """ForerunError and all classes that derive from it, by name."""
    names, size = {errors.ForerunError.__name__}, 0
    classes = [node for _, node in nodes() if isinstance(node, ast.ClassDef)]
    while len(names) > size:
        size = len(names)
        names |= {
            each.name
            for each in classes
            if any(isinstance(base, ast.Name) and base.id in names for base in each.bases)
        }
    return names


def raised() -> Iterator[tuple[str, str]]:
    """The file and the words of every ForerunError; what is filled in as a whole has none."""
    known = kinds()
    for name, node in nodes():
        if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name):
            words = text(node.args[0])
            if node.func.id in known and re.search("[a-z]{3}", words):
                yield name, words


def quoted() -> list[str]:
    """What the page's entries begin with, each a part of a message."""
    items = re.split(r"^- ", PAGE, flags=re.MULTILINE)[1:]
    heads = [" ".join(item.split()).partition("`: ")[0] + "`" for item in items if item[0] == "`"]
    return [words for head in heads for words in re.findall(r"`([^`]+)`", head)]


def says(message: str, words: str) -> bool:
    """Whether the message has these words, in this order where `...` parts them."""
    at = 0
    for part in words.split("..."):
        at = message.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def test_the_errors_of_the_troubleshooting_page_are_the_codes():
    parts = (ast.JoinedStr, ast.BinOp, ast.Constant)
    messages = {text(node) for _, node in nodes() if isinstance(node, parts)}
    assert len(quoted()) > 30
    for words in quoted():
        assert any(says(message, words) for message in messages), f"no message says {words}"


def test_every_error_has_an_entry_or_says_itself_what_to_do():
    messages, known = [*raised()], quoted()
    assert len(messages) > 400
    plain = set()
    for name, words in messages:
        if any(says(words, entry) for entry in known) or REMEDY.search(words):
            continue
        if name.startswith(OF_FILES + OF_THE_LABORATORY) and not name.startswith(OF_ALL_DRAFTERS):
            continue
        assert words in PLAIN, f"{name}: {words!r} has no entry in docs/troubleshooting.md"
        plain.add(words)
    assert plain == PLAIN, "no such message, or it needs no exception"
