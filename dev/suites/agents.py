"""Runs agents and clients against `forerun serve` through a recording proxy, and writes what each sent and was told.

    .venv/bin/python -m dev.suites.agents --model FILE.gguf

Each is installed from npm or PyPI into the work folder, unchanged, and asked one question. Every request is kept there
whole, in `requests.jsonl`, of which `client_requests` makes cases of a fast test. A client that cannot be installed is
skipped. Exits 1 if a client fails or is answered with an error.
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from dev.suites.serving import served
from forerun.lab.output import markdown_table

RESULTS = Path(__file__).with_name("agents.md")
OLLAMA_PORT = 11434
"""Where Codex looks for Ollama."""
LIMIT_S = 900.0
ASKED = "Say hello in one word."
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


OPENCODE = """{"autoupdate": false, "share": "disabled", "provider": {"own": {"npm": "@ai-sdk/openai-compatible",
  "options": {"baseURL": "$URL/v1", "apiKey": "none"}, "models": {"$MODEL": {}}}}}"""
CONTINUE = """{name: own, version: 1.0.0, schema: v1, models: [{name: own, provider: openai, model: $MODEL,
  apiBase: $URL/v1, apiKey: none, capabilities: [tool_use]}]}"""


@dataclass(frozen=True)
class Client:
    """A client: its packages, of npm or of PyPI, the files that it reads, and the command of a turn beside them.

    `$URL` and `$MODEL` stand for the server's address and the model's name, `$ASK` for a question.
    """

    name: str
    packages: str
    command: str
    files: Mapping[str, str] = field(default_factory=dict)

    def install(self, folder: Path) -> None:
        """Install into the folder. Raises OSError, CalledProcessError."""
        if "turn.py" in self.files:
            venv.create(folder, with_pip=True)
            install = [str(folder / "bin" / "pip"), "install", "-q"]
        else:
            install = ["npm", "install", "--silent"]
        subprocess.run([*install, *self.packages.split()], cwd=folder, check=True)


CLIENTS = (
    Client(
        *("Codex --oss", "@openai/codex"),
        'codex exec --oss --local-provider ollama -m "$MODEL" --skip-git-repo-check "$ASK"',
    ),
    Client("ollama (JavaScript)", "ollama", "node turn.mjs", {"turn.mjs": OLLAMA}),
    Client("guidance", "guidance openai", "python turn.py", {"turn.py": GUIDANCE}),
    Client(
        *("Continue", "@continuedev/cli", 'cn --config config.yaml -p "$ASK"'),
        {"config.yaml": CONTINUE},
    ),
    Client(
        *("cline", "cline"),
        'cline auth -p openai-compatible -k none -m "$MODEL" -b "$URL/v1" && '
        'cline -P openai-compatible -m "$MODEL" "$ASK"',
    ),
    Client(
        *("opencode", "opencode-ai", 'opencode run -m "own/$MODEL" "$ASK"'),
        {"opencode.json": OPENCODE},
    ),
    Client(
        *("qwen-code", "@qwen-code/qwen-code"),
        'OPENAI_BASE_URL=$URL/v1 OPENAI_API_KEY=none OPENAI_MODEL=$MODEL qwen --auth-type openai -p "$ASK"',
    ),
    Client(
        *("Claude Code", "@anthropic-ai/claude-code"),
        "ANTHROPIC_BASE_URL=$URL ANTHROPIC_AUTH_TOKEN=none ANTHROPIC_MODEL=$MODEL "
        'CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 claude -p "$ASK"',
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
            client.install(folder)
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
    own = {"URL": f"http://127.0.0.1:{OLLAMA_PORT}", "MODEL": model, "ASK": ASKED}
    for file, text in client.files.items():
        (folder / file).write_text(Template(text).safe_substitute(own))
    homes = dict.fromkeys(("HOME", "CODEX_HOME"), str(folder))
    programs = (folder / "node_modules" / ".bin", folder / "bin", os.environ["PATH"])
    own |= {**homes, "PATH": os.pathsep.join(map(str, programs))}
    try:
        with (folder / "output.txt").open("w") as log:
            done = subprocess.run(
                ["bash", "-c", client.command],
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
