"""Runs agents and clients against `forerun serve` through a recording proxy, and writes what each sent and was told.

    .venv/bin/python -m dev.suites.agents --model FILE.gguf

Codex with `--oss` (as it asks Ollama), ollama's JavaScript client and guidance, each installed from npm or PyPI into
the work folder, unchanged. Every request is kept there whole, in `requests.jsonl`, to be made a case of a fast test
where one fails. A client that cannot be installed is skipped. Exits 1 if a client fails or is answered with an error.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import venv
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dev.suites.serving import served
from forerun.lab.output import markdown_table

RESULTS = Path(__file__).with_name("agents.md")
OLLAMA_PORT = 11434
"""Where Codex looks for Ollama."""
LIMIT_S = 400.0
OLLAMA = """
import { Ollama } from 'ollama'
const ollama = new Ollama({ host: process.env.URL })
const model = (await ollama.list()).models[0].name
await ollama.show({ model }); await ollama.ps(); await ollama.version()
const ask = (content, more) => ollama.chat({ model, messages: [{ role: 'user', content }], ...more })
let text = ''
for await (const part of await ask('Count to 3.', { stream: true, options: { num_predict: 12 } }))
  text += part.message.content
const properties = { a: { type: 'integer' } }
const form = { type: 'object', properties, required: ['a'], additionalProperties: false }
const tools = [{ type: 'function', function: { name: 'show', description: 'Shows a.', parameters: form } }]
const call = (await ask('Call show with a=2.', { tools, options: { temperature: 0 } })).message
const answer = await ask('a is 7', { format: form })
if (!text || call.tool_calls?.[0].function.arguments.a !== 2) throw new Error(JSON.stringify(call))
JSON.parse(answer.message.content)
"""
GUIDANCE = """
import json, os
from guidance import assistant, gen, json as form, models, user
model = models.OpenAI("any", base_url=os.environ["URL"] + "/v1", api_key="none", echo=False)
with user():
    model += "What is 2 + 3? Answer with a number."
schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
with assistant():
    free, formed = model + gen("x", max_tokens=12), model + form(name="x", schema=schema, max_tokens=30)
assert free["x"] and "<|" not in free["x"], free["x"]
json.loads(formed["x"])
"""


@dataclass
class Client:
    """A client, how it is installed, and the command of a turn in the folder where it is."""

    name: str
    package: str
    install: Callable[[Path, str], None]
    turn: Callable[[Path, str], list[str]]


def _npm(folder: Path, package: str) -> None:
    (folder / "turn.mjs").write_text(OLLAMA)
    subprocess.run(["npm", "install", "--silent", package], cwd=folder, check=True)


def _pip(folder: Path, packages: str) -> None:
    (folder / "turn.py").write_text(GUIDANCE)
    venv.create(folder, with_pip=True)
    command = [folder / "bin" / "python", "-m", "pip", "install", "-q", *packages.split()]
    subprocess.run(command, check=True)


def _codex(folder: Path, model: str) -> list[str]:
    program = str(folder / "node_modules" / ".bin" / "codex")
    how = ["--oss", "--local-provider", "ollama", "-m", model, "--skip-git-repo-check"]
    return [program, "exec", *how, "Say hello in one word."]


CLIENTS = (
    Client("Codex --oss", "@openai/codex", _npm, _codex),
    Client("ollama (JavaScript)", "ollama", _npm, lambda folder, model: ["node", "turn.mjs"]),
    Client(
        *("guidance", "guidance openai", _pip),
        lambda folder, model: [str(folder / "bin" / "python"), "turn.py"],
    ),
)


class Recorder(http.server.ThreadingHTTPServer):
    """Passes requests on as they are, and keeps them with the status of their answers."""

    def __init__(self, target: str) -> None:
        self.target, self.seen = target, list[dict[str, object]]()
        super().__init__(("127.0.0.1", OLLAMA_PORT), _Passed)


class _Passed(http.server.BaseHTTPRequestHandler):
    server: Recorder

    def _pass(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else None
        kept = ("content-type", "authorization", "accept")
        headers = {name: value for name, value in self.headers.items() if name.lower() in kept}
        url = self.server.target + self.path
        request = urllib.request.Request(url, body, headers, method=self.command)
        try:
            answer = urllib.request.urlopen(request, timeout=LIMIT_S)
        except urllib.error.HTTPError as error:
            answer = error
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers.get("content-type", ""))
        self.end_headers()
        with answer:
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()
        seen = {"request": f"{self.command} {self.path}", "status": answer.status}
        self.server.seen.append({**seen, "body": body.decode() if body else None})

    do_GET = do_POST = do_HEAD = do_DELETE = _pass

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Install, run each client's turn, and write the table."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--model", required=True, help="as `forerun serve` takes it")
    reader.add_argument("--work", type=Path, default=Path("build/agents"))
    given = reader.parse_args()
    work, name = given.work.resolve(), Path(given.model).stem
    rows, failed = [], False
    for number, client in enumerate(CLIENTS):
        folder = work / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            client.install(folder, client.package)
        except (OSError, subprocess.CalledProcessError):
            rows.append([client.name, "not installed", ""])
            continue
        with served(given.model, folder / "server.log") as url:
            ended, seen = _turn(client, folder, name, url)
        lines = [json.dumps(one) + "\n" for one in seen]
        (folder / "requests.jsonl").write_text("".join(lines))
        is_right = ended and all(one["status"] == 200 for one in seen)
        failed |= not is_right
        asked = Counter(f"{one['request']} {one['status']}" for one in seen)
        shown = ", ".join(f"{one} x{count}" for one, count in asked.items())
        rows.append([client.name, "works" if is_right else "**fails**", shown])
    head = f"# Agents through a recording proxy\n\n{name}. `python -m dev.suites.agents --model FILE`\n\n"
    RESULTS.write_text(head + markdown_table(("client", "outcome", "requests"), rows) + "\n")
    print(f"written to {RESULTS}")
    if failed:
        sys.exit("a client fails: see the table and its folder")


def _turn(
    client: Client, folder: Path, model: str, url: str
) -> tuple[bool, list[dict[str, object]]]:
    """Whether a client's turn ended well, and what it sent."""
    recorder = Recorder(url)
    threading.Thread(target=recorder.serve_forever, daemon=True).start()
    own = {"URL": f"http://127.0.0.1:{OLLAMA_PORT}", "CODEX_HOME": str(folder)}
    try:
        with (folder / "output.txt").open("w") as log:
            done = subprocess.run(
                client.turn(folder, model),
                cwd=folder,
                env={**os.environ, **own},
                timeout=LIMIT_S,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return done.returncode == 0, recorder.seen
    except subprocess.TimeoutExpired:
        return False, recorder.seen
    finally:
        recorder.shutdown()
        recorder.server_close()


if __name__ == "__main__":
    main()
