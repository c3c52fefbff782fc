"""`forerun bench share`: what this machine does with one model, as a file that others may read."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Any

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish

CASES = "1,2,4,8,16,512@0"
CONTEXT, REPEATS = 128, 5
LIMIT, MAX_TOKENS = 8, 64
"""Prompts, one of each kind, and tokens of their answers."""
KEPT = (
    "system",
    "category",
    "prompts",
    "tok_s",
    "speedup",
    "speedup_lo",
    "speedup_hi",
    "tau",
    "identical",
)
"""What is kept of a row of `forerun bench`."""


@opt.command()
@opt.engine(
    without=(*opt.DRAFTER, "max_num_seqs", "memory_budget"), drafter="none", max_model_len=2048
)
@shared.out
@opt.as_json
def command(config: EngineConfig, out: Path | None, as_json: bool) -> None:
    """Measure passes, the start and drafting on eight prompts, and write a file to share: two to ten minutes.

    It says which processor, system and versions measured which model, and nothing of who or where; it is shown here,
    and sent nowhere. benchmarks/machines in the repository holds such files: yours is welcome there.
    """
    from forerun import _native
    from forerun.cli import console, tables
    from forerun.lab.bench import kernels, run, summary, workload
    from forerun.lab.store import Store

    start_s = time.perf_counter()
    llm = opt.load(config)
    loaded_s = time.perf_counter() - start_s
    shapes = [kernels.Case.of(text, CONTEXT) for text in CASES.split(",")]
    steps = kernels.measure(llm.model, shapes, rounds=REPEATS, others={}, kv=config.kv)
    *_, timings = tables.track(steps, "timing passes", REPEATS)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    groups = workload.groups(workload.choose(workload.read_task("builtin", None), LIMIT), 1)
    origin = run.origin(config, llm, params, task="builtin", batch=1)
    isa = getattr(llm.model, "isa", None)
    bench = run.Bench(
        groups, run.drafters(llm, "none,auto", None, params), llm.encode, Store(origin, None)
    )
    bench.run("measuring")
    rows = summary.rows(bench.rounds, origin)
    document: dict[str, Any] = {
        "provenance": {**origin, "platform": f"{platform.system()} {platform.machine()}"},
        "isas": {"runnable": _native.runnable_isas(), "ran": isa},
        "start_s": round(loaded_s, 2),
        "passes": timings.document(),
        "drafting": [{name: row[name] for name in KEPT if name in row} for row in rows],
    }
    click.echo(json.dumps(document, indent=1))
    if not as_json:
        console.note(
            f"written to {out}; nothing was sent" if out else "--out FILE writes it", dim=True
        )
    publish(document, lambda: None, as_json=False, out=out)
