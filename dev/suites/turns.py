"""Replays an agent's session against `forerun serve` and llama.cpp's server: seconds to the first token, turn by turn.

    .venv/bin/python -m dev.suites.turns --model FILE.gguf --peers FOLDER

The session is written from this repository: instructions of about `--instructions` tokens (its documents) with tools,
then turns that look at files, change one and read what tests print. Answers of the assistant are part of it, so that
both servers read the same; of each turn `ANSWER` tokens are written. Servers are asked in turns, a turn at a time, then
started again and asked the first question of another conversation. `FOLDER` is where `python -m
forerun.lab.bench.peers FOLDER llama.cpp` has put llama-cpp-python, whose server it is. Writes turns.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.servers import free_port, running
from forerun.lab.output import markdown_table
from forerun.server.client import Remote
from forerun.system.device import report

RESULTS = Path(__file__).with_name("turns.md")
ANSWER = 64
LETTERS_A_TOKEN = 3.2
OURS, THEIRS = "forerun", "llama.cpp"
LOOKED_AT = (
    "src/forerun/engine/lock.py",
    "src/forerun/core/batch.py",
    "src/forerun/drafters/base/rules.py",
)
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {one: {"type": "string"} for one in arguments},
                "required": [*arguments],
            },
        },
    }
    for name, about, arguments in (
        ("read_file", "Reads a file of the project.", ("path",)),
        ("write_file", "Writes a file of the project.", ("path", "text")),
        ("run", "Runs a command in a shell and returns what it prints.", ("command",)),
    )
)
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Turn:
    """What the user or a tool says, and the answer that the session goes on with."""

    kind: str
    said: str
    answer: str


@dataclass(frozen=True)
class Timing:
    """Of one turn of one server."""

    first_s: float
    whole_s: float
    timings: Mapping[str, Any]


Row = tuple[str, dict[str, Timing]]
"""A turn's name, and its timing by server."""


def instructions(num_tokens: int) -> str:
    """Return the project's documents, up to about so many tokens."""
    found = sorted(Path("docs").glob("*.md"))
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in found)
    head = "You are a coding agent. Use the tools. What follows is what the project says of itself.\n\n"
    return head + text[: int(LETTERS_A_TOKEN * num_tokens)]


def session() -> Iterator[Turn]:
    """Yield ten turns: three files are looked at, each is changed, tests are run."""
    for path in LOOKED_AT:
        text = Path(path).read_text(encoding="utf-8")[:3000]
        yield Turn("a question", f"What is in {path}?", f"I read {path}.")
        yield Turn(
            "a file", f"{path} holds:\n```python\n{text}\n```\nSay what it does.", "It is clear."
        )
        part = text[:600]
        asked = f"Write this again with every comment removed, and nothing else changed:\n{part}"
        yield Turn("an edit", asked, part)
    printed = "\n".join(f"tests/test_{i}.py::test_{i} PASSED [{i:3d}%]" for i in range(60))
    yield Turn("tests", f"The tests print:\n{printed}\nDo all pass?", "All pass.")


def ask(remote: Remote, messages: Messages) -> Timing:
    """Ask for the next answer as a stream."""
    body = {"messages": messages, "tools": [*TOOLS], "max_tokens": ANSWER, "temperature": 0}
    start_s, first_s, timings = time.perf_counter(), 0.0, dict[str, Any]()
    with remote.stream("/chat/completions", body) as stream:
        for chunk in stream:
            first_s = first_s or (time.perf_counter() - start_s if chunk.text else 0.0)
            timings.update(chunk.timings)
    whole_s = time.perf_counter() - start_s
    return Timing(first_s or whole_s, whole_s, timings)


@contextmanager
def servers(model: str, peers: Path, threads: int, context: int) -> Iterator[dict[str, Remote]]:
    """Run both servers of one model."""
    ports = {OURS: free_port(), THEIRS: free_port()}
    sizes = ["-t", str(threads), "-c", str(context), "--port", str(ports[OURS])]
    theirs = ["--model", model, "--n_ctx", str(context), "--n_threads", str(threads)]
    theirs += [
        "--n_threads_batch",
        str(threads),
        "--flash_attn",
        "true",
        "--port",
        str(ports[THEIRS]),
    ]
    python = str(peers / "llama.cpp" / "bin" / "python")
    ours = [sys.executable, "-m", "forerun", "serve", model, *sizes]
    with ExitStack() as stack:
        yield {
            OURS: stack.enter_context(running(OURS, ours, ports[OURS])),
            THEIRS: stack.enter_context(
                running(THEIRS, [python, "-m", "llama_cpp.server", *theirs], ports[THEIRS])
            ),
        }


def replay(remotes: Mapping[str, Remote], told: Messages) -> Iterator[Row]:
    """Ask each turn of each server, one after the other."""
    messages = [*told]
    for number, turn in enumerate(session(), 1):
        yield anew(remotes, messages, f"{number}: {turn.kind}", turn.said)
        messages.append({"role": "user", "content": turn.said})
        messages.append({"role": "assistant", "content": turn.answer})


def anew(remotes: Mapping[str, Remote], messages: Messages, name: str, said: str) -> Row:
    """Ask each server what follows on some messages."""
    asked = [*messages, {"role": "user", "content": said}]
    found = {server: ask(remote, asked) for server, remote in remotes.items()}
    print(name, *(f"{one} {timing.whole_s:.2f} s" for one, timing in found.items()), flush=True)
    return name, found


def table(rows: Sequence[Row]) -> str:
    """Write a line a turn."""
    head = (
        "turn",
        f"first, {OURS}",
        f"first, {THEIRS}",
        f"whole, {OURS}",
        f"whole, {THEIRS}",
        "times",
    )
    lines = []
    for name, found in rows:
        ours, theirs = found[OURS], found[THEIRS]
        seconds = (ours.first_s, theirs.first_s, ours.whole_s, theirs.whole_s)
        figures = ours.timings
        read = (
            f"{figures.get('prompt_n')} of {figures.get('prompt_n', 0) + figures.get('cache_n', 0)}"
        )
        drafts = f"{figures.get('draft_n_accepted')} of {figures.get('draft_n')}"
        lines.append(
            [
                name,
                *(f"{one:.2f}" for one in seconds),
                f"{theirs.whole_s / ours.whole_s:.1f}",
                read,
                drafts,
            ]
        )
    return markdown_table((*head, "tokens read", "drafts accepted"), lines)


def main() -> None:
    """Replay, start again, and write the table."""
    reader = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    reader.add_argument("--model", required=True)
    reader.add_argument("--peers", type=Path, required=True)
    reader.add_argument("--instructions", type=int, default=10_000)
    reader.add_argument("--threads", type=int, default=2)
    reader.add_argument("--context", type=int, default=24_576)
    given = reader.parse_args()
    told: Messages = [{"role": "system", "content": instructions(given.instructions)}]
    where = (given.model, given.peers, given.threads, given.context)
    with servers(*where) as remotes:
        rows = [*replay(remotes, told), anew(remotes, told, "another conversation", "Who are you?")]
    with servers(*where) as remotes:
        rows.append(anew(remotes, told, "after a restart", "Which files are here?"))
    machine = report()
    head = (
        f"# Turns of an agent\n\n`python -m dev.suites.turns`: {Path(given.model).stem}, seconds, "
    )
    text = (
        f"{head}{given.threads} threads of {machine['cpu']} ({machine['isa']}).\n\n{table(rows)}\n"
    )
    RESULTS.write_text(text, encoding="utf-8")
    print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
