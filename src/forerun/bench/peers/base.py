"""A peer as a contender: a process in its own environment that answers over a pipe, so that it can be interleaved.

`<folder>/<name>/bin/python` is the environment's interpreter; `make peers` creates them under `.peers`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from forerun.bench.passes import Case
from forerun.bench.run import WARM_UP_TOKENS, Answer, PeerError, Prompt
from forerun.core import registry
from forerun.core.errors import ConfigError, unknown

KIND = "bench.peers"
PASSES = "passes"
"""The way of a worker that runs single passes instead of answering."""
WORKER = Path(__file__).parent / "_worker.py"


@dataclass(frozen=True, slots=True)
class Setup:
    """What every peer is given: the model's file, threads, context and the folder of the environments."""

    model: Path
    num_threads: int
    max_len: int
    folder: Path


def adapter(name: str) -> ModuleType:
    """A peer's file. Raises ConfigError with the closest name if there is none."""
    modules = {m.NAME: m for m in (registry.load(KIND, name) for name in registry.names(KIND))}
    if name not in modules:
        raise ConfigError(unknown("peer", name, modules))
    return modules[name]


def contenders(name: str, setup: Setup) -> list[PeerContender]:
    """A peer in each of its ways."""
    module = adapter(name)
    return [PeerContender(module, way, setup) for way in module.WAYS]


def passes(name: str, setup: Setup) -> PeerContender:
    """A peer that runs single passes, to be timed. Raises ConfigError if it has none."""
    module = adapter(name)
    if not getattr(module, "HAS_PASSES", False):
        raise ConfigError(f"{name} cannot run single passes here: choose llama.cpp")
    return PeerContender(module, PASSES, setup)


class PeerContender:
    """One peer decoding in one way, one prompt at a time."""

    def __init__(self, module: ModuleType, way: str, setup: Setup) -> None:
        self.peer: str | None = module.NAME
        self.name = f"{module.NAME} {way}"
        python = setup.folder.absolute() / module.NAME / "bin" / "python"
        options = (setup.model, way, setup.num_threads, setup.max_len)
        # -P: the worker's folder holds adapters named like the libraries they import.
        self._command = [str(x) for x in (python, "-P", WORKER, module.__file__, *options)]
        self._process: subprocess.Popen[str] | None = None
        self._peak_rss_mb = 0.0

    def restart(self, warm_up: Prompt) -> None:
        """A new process with the model loaded, after a short answer."""
        self.start()
        self._ask(warm_up, WARM_UP_TOKENS)

    def start(self) -> None:
        """A new process with the model loaded. Raises PeerError."""
        self.close()
        if not Path(self._command[0]).exists():
            raise PeerError(f"{self.peer} is not installed: run make peers")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._hear()

    def answer(self, prompts: Sequence[Prompt], lengths: Sequence[int] | None) -> Answer:
        """As many tokens as plain decoding gave, whatever they are: peers are compared by speed, on equal counts."""
        assert lengths is not None, "plain decoding comes first"
        said = [self._ask(prompt, n) for prompt, n in zip(prompts, lengths, strict=True)]
        self._peak_rss_mb = max(message["peak_rss_mb"] for message in said)
        ttft_s = [message["ttft_s"] for message in said]
        return Answer(
            token_ids=[tuple(message["token_ids"]) for message in said],
            texts=[],
            ttft_s=ttft_s,
            prefill_s=sum(ttft_s),
            decode_s=sum(message["decode_s"] for message in said),
            decode_tokens=sum(lengths) - len(lengths),
        )

    def seconds(self, case: Case) -> float:
        """Seconds of one pass of the case, for a contender of the way `passes`."""
        found = self._request({"pass": [case.num_seqs, case.rows, case.context]})["seconds"]
        return float(found)

    def peak_rss_mb(self) -> float:
        """Of the peer's process."""
        return self._peak_rss_mb

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, prompt: Prompt, num_tokens: int) -> dict[str, Any]:
        return self._request({"prompt": list(prompt), "num_tokens": num_tokens})

    def _request(self, request: Mapping[str, object]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its last words say why
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self.name} ended without a word, exit code {self._process.wait()}")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise PeerError(str(message["error"]))
        return message
