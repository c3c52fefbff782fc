"""Makes fixtures of recorded requests: what clients send, with long texts cut and nothing of the machine that sent it.

    .venv/bin/python -m dev.suites.client_requests NAME=requests.jsonl ...

Reads what `dev.suites.agents` kept, a request a line, and writes `tests/server/fixtures/clients.json`:
of a conversation the last request, of its tools those that have something the others have not, a keyword of their
schema, a type, a call.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FIXTURE = Path("tests/server/fixtures/clients.json")
LONGEST = 60
"""Letters of a text."""
_OWN = (
    (re.compile(r"/(?:tmp|root|home)/[\w./@-]*"), "/project/a.txt"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "0" * 8),
    (re.compile(r"\b[0-9a-f]{32,}\b"), "0" * 8),
    (re.compile(r"\b20\d\d-\d\d-\d\d\b"), "2026-01-01"),
)
"""Paths, ids and dates."""
_CACHED = re.compile(r', "cache_control": \{[^}]*\}')


def trimmed(value: Any) -> Any:
    """Return a part of a request with its texts cut."""
    if isinstance(value, dict):
        return {key: trimmed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [trimmed(part) for part in value]
    if not isinstance(value, str):
        return value
    for pattern, instead in _OWN:
        value = pattern.sub(instead, value)
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 1].rstrip()}…"


def names(value: Any) -> Iterator[str]:
    """Yield the keys of a tool and of its schema, and its types; not the names of its parameters."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"{key}: {part}" if key == "type" else key
            yield from names([*part.values()] if key == "properties" else part)
    elif isinstance(value, list):
        for part in value:
            yield from names(part)


def few(tools: list[Any], called: str) -> list[Any]:
    """Return the tools that have something new, and those that the conversation calls."""
    seen, kept = set[str](), []
    for tool in tools:
        name = tool.get("function", tool).get("name")
        if not seen >= {*names(tool)} or f'"name": "{name}"' in called:
            seen |= {*names(tool)}
            kept.append(tool)
    return kept


def requests(path: Path) -> list[dict[str, Any]]:
    """Return a client's requests, those that another one goes on with left out."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    asked = [
        {"path": one["request"].split()[1], "body": json.loads(one["body"])}
        for one in found
        if one["body"]
    ]
    said = [_CACHED.sub("", json.dumps(_said(one["body"])))[:-1] for one in asked]
    return [
        one
        for i, one in enumerate(asked)
        if not any(other.startswith(f"{said[i]},") for other in said[i + 1 :])
    ]


def _said(body: dict[str, Any]) -> Any:
    return body.get("messages", body.get("input"))


def main() -> None:
    """Read the recordings and write the fixture."""
    rows = []
    for given in sys.argv[1:]:
        client, _, path = given.partition("=")
        for one in requests(Path(path)):
            body = one["body"]
            if "tools" in body:
                body["tools"] = few(body["tools"], json.dumps(_said(body)))
            rows.append({"client": client, "path": one["path"], "body": trimmed(body)})
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    FIXTURE.parent.mkdir(exist_ok=True)
    FIXTURE.write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
