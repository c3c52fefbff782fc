"""A peer as a system: a process in its own environment that answers over a pipe, so that it can be interleaved.

`<folder>/<name>/bin/python` is the environment's interpreter; `make peers` creates them under `.peers`. A peer with
a format of its own gets the model in it, made once and kept under `<folder>/<name>/models`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from threading import Timer
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.cli import console
from forerun.core import registry
from forerun.core.errors import ConfigError, unknown
from forerun.core.params import SamplingParams
from forerun.drafters.base.contract import SELF
from forerun.drafters.base.spec import DrafterSpec
from forerun.hub.names import resolve
from forerun.lab.bench.kernels import Case
from forerun.lab.bench.measurement import Measurement
from forerun.lab.bench.run import WARM_UP_TOKENS, PeerError, Prompt, System, changed
from forerun.llm import LLM

KIND = "lab.bench.peers"
PASSES = "passes"
"""The way of a worker that runs single passes instead of answering."""
LOGITS = "logits"
"""The way of a worker that gives the logits after every token of a text."""
WORKER = Path(__file__).parent / "_worker.py"
CONVERTER = Path(__file__).parent / "_convert.py"
STAMP = "requirements.txt"
"""What is written into an environment when it is complete."""
DRAFT_MODEL = "draft_model"
"""The way of decoding that needs a draft."""

REQUEST_TIMEOUT_S = 600.0
"""How long loading, or one answer, may take."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What every peer is given: model files, threads, context, environments, where to report progress."""

    model: Path
    num_threads: int
    max_len: int
    folder: Path
    draft: Path | None = None
    tell: Callable[[str], None] = lambda text: None


def adapters() -> dict[str, ModuleType]:
    """Import the modules of all peers, by the peers' names."""
    modules = [registry.load(KIND, name) for name in registry.names(KIND)]
    return {module.NAME: module for module in modules}


def adapter(name: str) -> ModuleType:
    """Return a peer's module. Raises ConfigError with the closest name if there is none."""
    modules = adapters()
    if name not in modules:
        raise ConfigError(unknown("peer", name, modules))
    return modules[name]


def systems(name: str, setup: Setup) -> list[PeerSystem]:
    """Make a system of each of a peer's ways of answering; those with a draft model only if there is one."""
    module = adapter(name)
    left_out = {PASSES, LOGITS} | ({DRAFT_MODEL} if setup.draft is None else set())
    return [PeerSystem(module, way, setup) for way in module.WAYS if way not in left_out]


def peers(
    llm: LLM, names: Sequence[str], folder: Path, specs: Sequence[str], params: SamplingParams
) -> list[PeerSystem]:
    """Make the named peers, each in all of its ways; they draft with the files that our drafters draft with."""
    if names and (not params.is_greedy or changed(params) or llm.config.max_num_seqs > 1):
        raise ConfigError(
            "peers decode greedily and one prompt at a time: temperature 0, batch 1 and no other option of sampling"
        )
    drafts = draft_models(specs)
    setup = Setup(
        llm.path,
        llm.model.num_threads,
        llm.max_len,
        folder,
        draft=resolve(drafts[0]) if drafts else None,
        tell=console.note,
    )
    return [system for name in names for system in systems(name, setup)]


def draft_models(specs: Sequence[str]) -> list[str]:
    """Return the models that drafters `draft_model` load, the target itself left out."""
    chosen = [DrafterSpec.of(spec) for spec in specs]
    parts = [part for spec in chosen for part in (spec.parts or (spec,))]
    models = [str(part.options["model"]) for part in parts if part.name == DRAFT_MODEL]
    return [model for model in models if model != SELF]


def single(name: str, way: str, setup: Setup) -> PeerSystem:
    """Make a peer that runs single passes, to be timed, or gives logits. Raises ConfigError if it cannot."""
    if way not in adapter(name).WAYS:
        what = "run single passes" if way == PASSES else "give logits"
        raise ConfigError(f"{name} cannot {what} here: choose llama.cpp")
    return PeerSystem(adapter(name), way, setup)


def is_installed(name: str, folder: Path) -> bool:
    """Tell whether `make peers` has completed the peer's environment."""
    return (folder / adapter(name).NAME / STAMP).exists()


class PeerSystem(System):
    """One peer decoding in one way, one prompt at a time. Between its turns its process is stopped."""

    def __init__(self, module: ModuleType, way: str, setup: Setup) -> None:
        self.name, self.peer, self.quant = f"{module.NAME} {way}", module.NAME, module.QUANT
        self._module, self._way, self._setup = module, way, setup
        self._home = setup.folder.absolute() / module.NAME
        self._process: subprocess.Popen[str] | None = None

    def restart(self, warm_up: Prompt) -> None:
        """Start a new process with the model loaded, and warm it up with a short answer."""
        self.start()
        self._ask(warm_up, WARM_UP_TOKENS)

    def start(self) -> None:
        """Start a new process with the model loaded. Raises PeerError."""
        self.close()
        if not (self._home / "bin" / "python").exists():
            raise PeerError(f"{self.peer} is not installed: run make peers")
        setup = self._setup
        draft = setup.draft if self._way == DRAFT_MODEL else None
        options = {
            "model": str(self._format(setup.model)),
            "way": self._way,
            "num_threads": setup.num_threads,
            "max_len": setup.max_len,
            "draft": str(self._format(draft)) if draft is not None else None,
        }
        self._errors = tempfile.TemporaryFile(  # noqa: SIM115  # as long as the process
            "w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            self._command(WORKER, json.dumps(options)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=self._environment(),
        )
        self._read_reply()

    def answer(
        self, prompts: Sequence[Prompt], lengths: Sequence[int] | None = None
    ) -> Measurement:
        """Generate as many tokens as plain decoding did, whatever they are: speeds are compared on equal counts."""
        assert lengths is not None, "plain decoding comes first"
        replies = [self._ask(prompt, n) for prompt, n in zip(prompts, lengths, strict=True)]
        keys = ("token_ids", "ttft_s", "decode_s", "decode_tokens", "peak_rss_mb")
        ids, ttft_s, decode_s, counts, peaks = zip(*map(itemgetter(*keys), replies), strict=True)
        return Measurement(
            self.name,
            token_ids=[*ids],
            ttft_s=[*ttft_s] if self._module.KEEPS_PREFIXES else [],
            prefill_s=sum(ttft_s),
            decode_s=sum(decode_s),
            decode_tokens=sum(counts),
            peak_rss_mb=max(peaks),
        )

    def seconds(self, case: Case) -> float:
        """Return the seconds of one pass of the case, for a system of the way `passes`."""
        seconds = self._request({"pass": [case.num_seqs, case.rows, case.context]})["seconds"]
        return float(seconds)

    def logits(self, tokens: Prompt) -> NDArray[np.float32]:
        """Return the logits (n, V) after each of the tokens (n,), for a system of the way `logits`."""
        with tempfile.NamedTemporaryFile(suffix=".f32") as file:
            self._request({"logits": list(tokens), "file": file.name})
            return np.fromfile(file.name, np.float32).reshape(len(tokens), -1)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
            self._errors.close()

    def _command(self, script: Path, *arguments: object) -> list[str]:
        # -P: the scripts' folder holds adapters named like the libraries they import.
        python = self._home / "bin" / "python"
        return [str(x) for x in (python, "-P", script, self._module.__file__, *arguments)]

    def _environment(self) -> dict[str, str]:
        """Set the number of threads for libraries that take all cores by default, and keep them off the network."""
        return {
            **os.environ,
            "OMP_NUM_THREADS": str(self._setup.num_threads),
            "HF_HUB_OFFLINE": "1",
        }

    def _format(self, model: Path) -> Path:
        """The model as this peer reads it, converted now if it never was."""
        if model.suffix != ".gguf":
            raise PeerError(f"peers read GGUF files only, and {model.name} is none")
        if not hasattr(self._module, "convert"):
            return model
        target = self._home / "models" / f"{model.stem}-{model.stat().st_size}"
        if target.exists():
            return target
        log = target.with_name(f"{target.name}.log")
        log.parent.mkdir(exist_ok=True)
        start_s = time.perf_counter()
        self._setup.tell(f"converting {model.name} for {self.peer}, once; its words are in {log}")
        with log.open("w", encoding="utf-8") as file:
            command = self._command(CONVERTER, model, target)
            done = subprocess.run(
                command, env=self._environment(), check=False, stdout=file, stderr=subprocess.STDOUT
            )
        if done.returncode != 0:
            last = _last_line(log.read_text(encoding="utf-8", errors="replace"))
            raise PeerError(f"cannot convert {model.name}: {last} (more in {log})")
        self._setup.tell(f"converted in {time.perf_counter() - start_s:.0f} s")
        return target

    def _ask(self, prompt: Prompt, num_tokens: int) -> dict[str, Any]:
        return self._request({"prompt": list(prompt), "num_tokens": num_tokens})

    def _request(self, request: Mapping[str, object]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its last words say why
        return self._read_reply()

    def _read_reply(self) -> dict[str, Any]:
        """Its next line; then the process sleeps, because threads that wait by spinning slow the other systems."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        limit = Timer(REQUEST_TIMEOUT_S, process.kill)
        limit.start()
        try:
            line = process.stdout.readline()
        finally:  # by Ctrl-C too: Python would wait for the timer before it ends
            limit.cancel()
        if not line:
            raise PeerError(self._end(process.wait()))
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            self.close()
            raise PeerError(str(message["error"]))
        process.send_signal(signal.SIGSTOP)
        return message

    def _end(self, code: int) -> str:
        """Why a process that does not answer ended."""
        self._errors.seek(0)
        last = _last_line(self._errors.read())
        return f"{self.name} ended without an answer, exit code {code}" + (last and f": {last}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
