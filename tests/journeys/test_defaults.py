"""What everybody runs: the model's own sampling, all cores, the default drafter and its controller, in a process.

The other tests run greedily and on one core (`tests/conftest.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.system import processes
from forerun.text import generation

ASK = """
import json
from dataclasses import replace
from forerun import LLM
from forerun.system import processes

llm = LLM("smollm2-135m-instruct", seed=11)
said = [[{"role": "user", "content": text}] for text in ("Count from one to forty.", "Name ten animals.")]
params = llm.default_params()
params = [replace(params, max_tokens=120, seed=i) for i in range(2)]
drafted, plain = ([out.outputs[0] for out in each.chat(said, params)] for each in (llm, llm.with_drafter("none")))
print(json.dumps({
    "params": [params[0].temperature, params[0].top_p],
    "threads": [llm.model.num_threads, len(processes.usable_cpus())],
    "drafter": llm.drafter_spec.text(),
    "ids": [[list(one.token_ids) for one in each] for each in (drafted, plain)],
    "drafted": sum(one.stats.drafted for one in drafted),
    "accepted": sum(one.stats.accepted for one in drafted),
    "plain": sum(one.stats.drafted for one in plain),
}))
"""


@pytest.fixture(scope="module")
def told(default_model: Path) -> dict:
    out = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(out.stdout)


def test_a_sampled_answer_on_all_cores_is_that_of_plain_decoding(told):
    drafted, plain = told["ids"]
    assert drafted == plain
    assert told["drafted"] > told["accepted"] > 0
    assert told["plain"] == 0
    assert told["drafter"] == "mlp_speculator++recycling"


def test_the_defaults_are_not_those_of_the_other_tests(told):
    threads, usable = told["threads"]
    assert usable == len(os.sched_getaffinity(0))
    assert (threads > 1) == (usable > 1)
    assert len(processes.usable_cpus()) == 1
    assert generation.ADVISED == {}
    assert told["params"][0] > 0
