"""As much of the Hugging Face Hub as its client needs for listing and downloading."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PART = 5 << 20
SLOW_S = 0.3
"""Between two parts of a large file."""
FILES = {
    "org/model": {"config.json": b"{}", "model.safetensors": b"weights", "big.bin": b"no"},
    "org/model-GGUF": {"model-Q4_K_M.gguf": b"q4", "model-Q8_0.gguf": b"q8", "README.md": b"hi"},
    "org/shards": {
        "config.json": b"{}",
        "model.safetensors.index.json": b'{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}',
        "a.safetensors": b"a",
        "b.safetensors": b"b",
    },
    "org/large-GGUF": {"m-Q4_K_M.gguf": bytes(6 * PART)},
    "org/split-GGUF": {f"m-Q4_K_M-0000{i}-of-00002.gguf": b"%d" % i for i in (1, 2)},
}


def lfs(content: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1}


class Hub(BaseHTTPRequestHandler):
    """As much of the names as its client needs for listing and downloading."""

    def do_HEAD(self) -> None:
        self.answer(head=True)

    def do_GET(self) -> None:
        self.answer(head=False)

    def answer(self, head: bool) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        repo = "/".join(parts[2:4] if is_api else parts[:2])
        files = FILES.get(repo)
        if files is None:
            self.reply(401, b"", head, {"X-Error-Code": "RepoNotFound"})
        elif is_api:
            self.reply(200, self.listing(repo, parts[4:5] == ["tree"]), head, {})
        else:
            self.reply(200, files[parts[-1]], head, {"X-Repo-Commit": "a" * 40})

    def listing(self, repo: str, as_tree: bool) -> bytes:
        tree = [
            {"type": "file", "path": name, "size": len(content), "oid": name}
            for name, content in FILES[repo].items()
        ]
        siblings = [
            {"rfilename": name, "size": len(content), "lfs": lfs(content), "blobId": "0" * 40}
            for name, content in FILES[repo].items()
        ]
        info = {"id": repo, "sha": "a" * 40, "siblings": siblings}
        return json.dumps(tree if as_tree else info).encode()

    def reply(self, status: int, body: bytes, head: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        etag = hashlib.sha256(body).hexdigest()
        for key, value in (headers | {"Content-Length": str(len(body)), "ETag": etag}).items():
            self.send_header(key, value)
        self.end_headers()
        for start in range(0, 0 if head else len(body), PART):
            self.wfile.write(body[start : start + PART])
            if len(body) > PART:
                time.sleep(SLOW_S)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def running_hub() -> Iterator[str]:
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()
