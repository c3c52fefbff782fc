"""Make the files of `benchmarks/workloads`: what assistants are used for. `python -m dev.make_workloads DATA OUT`.

`prompts.jsonl`: five kinds of eight conversations: dialogues of several turns, JSON out of dialogues, edits of
functions, agents (a task, then what its tools returned), and questions about one long document.

`long.jsonl`: four prompts of about 1,000, 4,000, 8,000 and 16,000 tokens each, which is their category: a question
about a novel, one about a textbook, a code file to be edited, an agent's log. What is asked, and what stands right
before it, is the same at every length: the shorter context is the end of the longer one.

DATA is a folder of `sgd_dialogues.jsonl.gz` (`messages` in turn), `openstax_textbooks.jsonl.gz` and
`litbank_novels.jsonl.gz` (`text`); code is of Python's standard library.
"""

from __future__ import annotations

import ast
import gzip
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

EACH = 8
MODULES = ("textwrap", "shutil", "fnmatch", "heapq", "statistics", "calendar", "difflib", "string")
LOG_MODULES = (*MODULES, "ast", "pickletools", "zipfile", "mailbox", "inspect", "tarfile")
EDITS = (
    "Add type hints to this function and change nothing else. Print the whole function.",
    "Rename every local variable of this function that has a short name to a longer one. Print the whole function.",
    "Add a line to this function that logs its arguments with the module `logging`. Print the whole function.",
    "Rewrite the docstring of this function in one sentence, and leave the code as it is. Print the whole function.",
)
QUESTIONS = (
    "What is the text about?",
    "List the names that occur.",
    "Quote the most important sentence.",
    "What comes first, and what follows from it?",
    "Explain one technical term of it.",
    "Which dates or numbers are given?",
    "Give three questions for an exam on it.",
    "Summarize it in two sentences.",
)
TO_JSON = (
    "Extract what the user wants from this dialogue as JSON: an object with the keys service, request, place, date and "
    "details (an object). Answer with the JSON alone.\n\n"
)
TOOLS = (
    "You are an agent that mends Python code. In every turn answer with one call, as JSON on a line:\n"
    '{"tool": "read_file", "path": "..."}\n'
    '{"tool": "write_file", "path": "...", "text": "..."}\n'
    '{"tool": "run_tests", "path": "..."}\n'
    '{"tool": "finish", "summary": "..."}\n'
    "Read a file before you write it, write it whole, and run the tests after each change.\n\nTask: "
)

LENGTHS = {"1k": 1000, "4k": 4000, "8k": 8000, "16k": 16000}
"""Tokens by category; a text is cut to as many characters as Qwen2.5's tokenizer takes for them."""
LONG_MODULE = "pydoc"
ABOUT_NOVEL = "Tell in order what happens in the last pages above, and quote a sentence of each person who speaks."
ABOUT_TEXTBOOK = (
    "Name the main subjects of the text above, each with a sentence of the text that shows it."
)
LOG_TASK = "all functions of this project should raise ValueError if their first argument is None."
NEXT_CALL = "Above is what you did so far. Go on: answer with the next call."


def dialogues(data: Path, rng: random.Random) -> Iterator[list[str]]:
    """Yield conversations whose user turns are real ones; what is answered to them is the model's."""
    for row in _chosen(data / "sgd_dialogues.jsonl.gz", rng, 2 * EACH)[:EACH]:
        yield row["messages"][::2][:5]


def extractions(data: Path, rng: random.Random) -> Iterator[list[str]]:
    """Yield requests for what a dialogue says, as JSON."""
    for row in _chosen(data / "sgd_dialogues.jsonl.gz", rng, 2 * EACH)[EACH:]:
        said = (f"{who}: {text}" for text, who in zip(row["messages"], ("User", "Assistant") * 99))
        yield [TO_JSON + "\n".join(said)]


def edits(rng: random.Random) -> Iterator[list[str]]:
    """Yield requests to change a function a little."""
    for i, (_, code) in enumerate(_functions(rng)):
        yield [f"{EDITS[i % len(EDITS)]}\n\n```python\n{code}\n```"]


def agents(rng: random.Random) -> Iterator[list[str]]:
    """Yield an agent's conversations: a task, a file that it read, a failing test, and a test that passes."""
    for name, code in _functions(rng):
        path = f"src/{name}.py"
        yield [
            f"{TOOLS}the function `{name}` in {path} should raise ValueError if its first argument is None.",
            f"Result of read_file {path}:\n\n{code}",
            f"Result of write_file: ok\nResult of run_tests: 1 failed: test_{name}_none: ValueError was not raised",
            "Result of write_file: ok\nResult of run_tests: 12 passed",
        ]


def documents(data: Path, rng: random.Random) -> Iterator[list[str]]:
    """Yield questions about one text of about 900 words: prompts that begin alike."""
    rows = _chosen(data / "openstax_textbooks.jsonl.gz", rng, 40)
    text = next(row["text"] for row in rows if len(row["text"].split()) > 1200)
    part = " ".join(text.split()[:900])
    for question in QUESTIONS:
        yield [f"{part}\n\n{question}"]


def long_prompts(data: Path, rng: random.Random) -> Iterator[dict]:
    """Yield four prompts of each length, the shortest first."""
    novel = _chosen(data / "litbank_novels.jsonl.gz", rng, 1)[0]["text"][:200_000]
    sections = [row["text"] for row in _chosen(data / "openstax_textbooks.jsonl.gz", rng, 40)]
    code, function = _module_to_function(LONG_MODULE)
    edit = (
        f"Add type hints to `{function}`, the last function of this file. Print the whole function."
    )
    contexts = (
        ("novel", "", novel, 4.2, ABOUT_NOVEL),
        ("textbook", "", "\n\n".join(sections), 5.0, ABOUT_TEXTBOOK),
        ("code", "", code, 4.5, edit),
        ("agent", f"{TOOLS}{LOG_TASK}\n\n", agent_log(rng), 3.7, NEXT_CALL),
    )
    for category, num_tokens in LENGTHS.items():
        for kind, head, text, chars, question in contexts:
            end = text[-int(num_tokens * chars) :].partition("\n")[2]
            yield {
                "id": f"{kind}-{category}",
                "category": category,
                "turns": [f"{head}{end}\n\n{question}"],
            }


def agent_log(rng: random.Random) -> str:
    """Return calls and results of an agent that read, changed and tested functions; the last one is only read."""
    calls: list[str] = []
    functions = _library_functions(LOG_MODULES)
    for name, code in rng.sample(functions, len(functions)):
        if (first := re.match(r"def \w+\((\w+)", code)) is None:
            continue
        path = f"src/{name}.py"
        calls += [json.dumps({"tool": "read_file", "path": path}), f"Result of read_file: {code}"]
        head, _, body = code.partition(":\n")
        changed = f"{head}:\n    if {first[1]} is None:\n        raise ValueError\n{body}"
        calls += [
            json.dumps({"tool": "write_file", "path": path, "text": changed}),
            "Result of write_file: ok",
            json.dumps({"tool": "run_tests", "path": f"tests/test_{name}.py"}),
            f"Result of run_tests: {rng.randrange(3, 30)} passed in {rng.randrange(1, 90) / 100} s",
        ]
    return "\n".join(calls[:-4])


def _module_to_function(module: str) -> tuple[str, str]:
    """Return a module's text as far as its last function of 15 to 45 lines, and that function's name."""
    code = (Path(sysconfig.get_path("stdlib")) / f"{module}.py").read_text("utf-8")
    name, last = _library_functions((module,))[-1]
    return code[: code.index(last) + len(last)], name


def _functions(rng: random.Random) -> list[tuple[str, str]]:
    """Return names and code of some functions."""
    return rng.sample(_library_functions(MODULES), EACH)


def _library_functions(modules: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return names and code of these modules' functions of 15 to 45 lines."""
    library, found = Path(sysconfig.get_path("stdlib")), []
    for module in modules:
        code = (library / f"{module}.py").read_text("utf-8")
        for node in ast.parse(code).body:
            if isinstance(node, ast.FunctionDef) and 15 <= node.end_lineno - node.lineno <= 45:
                found.append((node.name, ast.get_source_segment(code, node)))
    return found


def _chosen(path: Path, rng: random.Random, count: int) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return rng.sample([json.loads(line) for line in file], count)


def main(data: str, out: str) -> None:
    """Write the files."""
    folder = Path(data)
    kinds = {
        "dialogue": dialogues(folder, random.Random(1)),
        "json": extractions(folder, random.Random(1)),
        "edit": edits(random.Random(2)),
        "agent": agents(random.Random(3)),
        "document": documents(folder, random.Random(5)),
    }
    short = (
        {"id": f"{kind}-{i}", "category": kind, "turns": turns}
        for kind, conversations in kinds.items()
        for i, turns in enumerate(conversations, 1)
    )
    for name, rows in (("prompts", short), ("long", long_prompts(folder, random.Random(6)))):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (Path(out) / f"{name}.jsonl").write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
