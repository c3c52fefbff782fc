"""Make `benchmarks/workloads/prompts.jsonl`: what assistants are used for. `python -m dev.make_workloads DATA_DIR OUT`.

Five kinds of eight conversations: dialogues of several turns, JSON out of dialogues, edits of functions, agents (a
task, then what its tools returned), and questions about one long document. DATA_DIR holds `sgd_dialogues.jsonl.gz`
(`messages` in turn) and `openstax_textbooks.jsonl.gz` (`text`); functions are those of Python's standard library.
"""

from __future__ import annotations

import ast
import gzip
import json
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

EACH = 8
MODULES = ("textwrap", "shutil", "fnmatch", "heapq", "statistics", "calendar", "difflib", "string")
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


def _functions(rng: random.Random) -> list[tuple[str, str]]:
    """Return names and code of functions of 15 to 45 lines."""
    library, found = Path(sysconfig.get_path("stdlib")), []
    for module in MODULES:
        code = (library / f"{module}.py").read_text("utf-8")
        for node in ast.parse(code).body:
            if isinstance(node, ast.FunctionDef) and 15 <= node.end_lineno - node.lineno <= 45:
                found.append((node.name, ast.get_source_segment(code, node)))
    return rng.sample(found, EACH)


def _chosen(path: Path, rng: random.Random, count: int) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return rng.sample([json.loads(line) for line in file], count)


def main(data: str, out: str) -> None:
    """Write the file."""
    folder = Path(data)
    kinds = {
        "dialogue": dialogues(folder, random.Random(1)),
        "json": extractions(folder, random.Random(1)),
        "edit": edits(random.Random(2)),
        "agent": agents(random.Random(3)),
        "document": documents(folder, random.Random(5)),
    }
    with Path(out).open("w", encoding="utf-8") as file:
        for kind, conversations in kinds.items():
            for i, turns in enumerate(conversations, 1):
                row = {"id": f"{kind}-{i}", "category": kind, "turns": turns}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
