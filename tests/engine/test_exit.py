"""Programs that end with a model still at work, or that are allowed fewer threads than they ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import sys, threading, time
from forerun import LLM, SamplingParams
llm = LLM(sys.argv[1], threads=2, drafter="recycling")
params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
"""
DAEMON = """
begun = threading.Event()
def work():
    while True:
        llm.generate(["one two"], params)
        begun.set()
threading.Thread(target=work, daemon=True).start()
begun.wait(30)
"""
HELD = {
    "daemon thread": DAEMON,
    "half a stream": "stream = llm.stream('one', params); next(stream)",
    "cycle": "class A: pass\na = A(); a.me, a.llm = a, llm; llm.generate(['one'], params); del llm, a",
}


@pytest.mark.parametrize("code", HELD.values(), ids=HELD)
def test_a_program_that_ends_with_a_model_at_work_ends_quietly(code: str, tiny_gguf: Path) -> None:
    for _ in range(3 if code is DAEMON else 1):  # where in its pass the thread is cut off is chance
        run = subprocess.run(
            [sys.executable, "-c", HEAD + code, str(tiny_gguf)], capture_output=True, timeout=60
        )
        assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0 or not shutil.which("setpriv"),
    reason="needs another user's limit of tasks",
)
@pytest.mark.parametrize(("limit", "threads"), [(1, 4), (2, 4), (4, 8)])
def test_fewer_threads_than_asked_for_do(limit: int, threads: int, tiny_gguf: Path) -> None:
    user = [*("setpriv", "--reuid=23456", "--regid=23456", "--clear-groups")]
    user += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    code = "import sys; from forerun import LLM; print(LLM(sys.argv[1], threads=int(sys.argv[2])).generate('one'))"
    run = subprocess.run(
        [*user, "prlimit", f"--nproc={limit}", sys.executable, "-c", code, tiny_gguf, str(threads)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HOME": "/nonexistent", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert "token_ids" in run.stdout
