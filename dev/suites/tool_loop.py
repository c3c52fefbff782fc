"""Leads a model through a long loop of calls and results over `forerun serve`: no request refused, no call lost.

    .venv/bin/python -m dev.suites.tool_loop --model FILE.gguf --turns 200

A turn asks for one call of three tools, in turn streamed and whole; its result and the next request follow, and the
last turns are kept. A call is lost if an answer names an offered tool in an object and has no `tool_calls`, or if its
arguments are no JSON. Exits 1 at a refused request or a lost call, or if drafts were not made, accepted and rejected.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import openai

from dev.suites.serving import drafted, served
from forerun.lab.output import markdown_table

RESULTS = Path(__file__).with_name("tool_loop.md")
KEPT = 3
"""Turns of the conversation that a request carries."""
TEXTS = ("plain words", 'a "quoted" word', "two\nlines", "naïve café ☕", "C:\\temp\\x", "{curly}")


def _tool(name: str, **properties: str) -> dict[str, Any]:
    schema = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    _tool("add", a="integer", b="integer"),
    _tool("write_note", text="string"),
    _tool("read_file", path="string"),
]


def _wanted(turn: int) -> str:
    text = TEXTS[turn // 3 % len(TEXTS)]
    return (
        f"Call add with a={turn} and b={turn * 7}.",
        f"Call write_note with this text: {text}",
        f"Call read_file with path=src/file_{turn}.py.",
    )[turn % 3]


def main() -> None:
    """Run the loop, write the table, and judge."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--model", required=True, help="as `forerun serve` takes it")
    reader.add_argument("--turns", type=int, default=200)
    reader.add_argument("--work", type=Path, default=Path("build/tool_loop"))
    given = reader.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    with served(given.model, given.work / "server.log") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=600, max_retries=0)
        outcomes, lost = _loop(client, given.turns)
        counts = drafted(url)
    rows = [[kind, str(count)] for kind, count in outcomes.most_common()]
    page = [
        "# A loop of tools\n",
        f"{given.turns} turns, {Path(given.model).stem}, greedily. `python -m dev.suites.tool_loop --model FILE`\n",
        markdown_table(("outcome", "turns"), rows) + "\n",
        ", ".join(f"{name} {count:.0f}" for name, count in counts.items()) + " tokens.\n",
        *(f"- {one}" for one in lost),
    ]
    RESULTS.write_text("\n".join(page))
    print(f"written to {RESULTS}")
    if lost or not 0 < counts["accepted"] < counts["drafted"]:
        sys.exit("a request was refused, a call was lost, or drafts were not made: see the table")


def _loop(client: openai.OpenAI, num_turns: int) -> tuple[Counter[str], list[str]]:
    """Count what came of the turns, and say what was refused or lost."""
    outcomes, lost, turns = Counter[str](), list[str](), list[list[dict[str, Any]]]()
    for turn in range(num_turns):
        asked = {"role": "user", "content": _wanted(turn)}
        messages = [*(one for kept in turns[-KEPT:] for one in kept), asked]
        try:
            message = _ask(client, messages, streams=turn % 2 == 1)
        except openai.APIStatusError as error:
            outcomes["refused"] += 1
            lost.append(f"turn {turn}: {error.message}")
            continue
        calls = message.get("tool_calls") or []
        kind = _kind(message["content"] or "", calls, asked["content"])
        outcomes[kind] += 1
        if kind == "lost":
            lost.append(f"turn {turn}: `{json.dumps(message)[:200]}`")
        results = [
            {"role": "tool", "tool_call_id": one["id"], "content": json.dumps({"ok": turn})}
            for one in calls
        ]
        turns.append([asked, message, *results])
    return outcomes, lost


def _ask(client: openai.OpenAI, messages: list[dict[str, Any]], *, streams: bool) -> dict[str, Any]:
    """The answer as the client would send it back."""
    asked: dict[str, Any] = {"model": "any", "messages": messages, "tools": TOOLS}
    asked |= {"temperature": 0, "max_tokens": 120}
    if not streams:
        found = client.chat.completions.create(**asked).choices[0].message
        return found.model_dump(include={"role", "content", "tool_calls"})
    content, calls = "", dict[int, dict[str, Any]]()
    for chunk in client.chat.completions.create(**asked, stream=True):
        delta = chunk.choices[0].delta if chunk.choices else None
        content += (delta and delta.content) or ""
        for part in (delta and delta.tool_calls) or []:
            empty = {"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}}
            function = calls.setdefault(part.index, empty)["function"]
            function["name"] += part.function.name or ""
            function["arguments"] += part.function.arguments or ""
    return {"role": "assistant", "content": content or None, "tool_calls": [*calls.values()]}


def _kind(content: str, calls: list[dict[str, Any]], asked: str) -> str:
    names = [one["function"]["name"] for one in TOOLS]
    if not calls:
        is_call = re.search(rf'"name":\s*"(?:{"|".join(names)})"', content)
        return "lost" if is_call else "text, no call"
    try:
        arguments = [json.loads(one["function"]["arguments"]) for one in calls]
    except ValueError:
        return "lost"
    right = calls[0]["function"]["name"] in asked and all(
        isinstance(one, dict) for one in arguments
    )
    return "the tool asked for" if right else "another tool"


if __name__ == "__main__":
    main()
