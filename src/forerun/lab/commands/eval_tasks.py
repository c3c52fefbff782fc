"""`forerun eval tasks`: how many questions of a task a model answers rightly."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.core import registry
from forerun.core.config import DRAFT_FIELDS, EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.lab import provenance
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forerun.engine.outputs import CompletionOutput


@opt.command()
@opt.engine(without=("max_num_seqs",))
@click.option("--task", default="gsm8k", help="gsm8k or humaneval (with --run-code).")
@click.option(
    "--tasks-dir",
    default=Path(),
    type=opt.PATH,
    help="Folder with TASK.jsonl; see docs/measuring.md.",
)
@click.option("--limit", type=int, help="Only the first prompts.")
@click.option("-n", "--max-tokens", type=int, help="Of an answer; default: the task's.")
@shared.batch
@click.option("--run-code", is_flag=True, help="Allow tasks that run code the model wrote.")
@shared.out_resumed
@opt.as_json
def command(
    config: EngineConfig,
    task: str,
    tasks_dir: Path,
    limit: int | None,
    max_tokens: int | None,
    batch: int,
    run_code: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Score a model on a task, greedily. The drafter changes how fast it answers, not the score."""
    from forerun.cli import console, tables
    from forerun.hub.prompt_sets import read
    from forerun.lab.eval import scores
    from forerun.lab.store import Store

    opt.check_least("batch", batch, 1)
    rules = registry.load("lab.eval.tasks", task)
    if rules.RUNS_CODE and not run_code:
        raise ConfigError(
            f"task '{task}' runs code that the model wrote: add --run-code to allow it "
            "(in a process of its own, with limits)"
        )
    file = tasks_dir / f"{task}.jsonl"
    prompts = read(file, limit)
    llm = opt.load(config, max_num_seqs=batch)
    max_tokens = rules.MAX_TOKENS if max_tokens is None else max_tokens
    origin = provenance.origin(
        config,
        llm,
        task=task,
        prompts=hashlib.sha256(file.read_bytes()).hexdigest(),
        drafter=str(config.drafter),
        **{name: getattr(config, name) for name in DRAFT_FIELDS},
        draft_options={**config.draft_options},
        min_draft=config.min_draft,
        max_tokens=max_tokens,
        max_model_len=llm.max_len,
    )

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)

    def ask(questions: Sequence[str]) -> list[CompletionOutput]:
        outputs = llm.generate([opt.conversation(question) for question in questions], params)
        return [output.outputs[0] for output in outputs]

    steps = scores.grade(rules, prompts, ask, Store(origin, out), batch=batch)
    figures = scores.document([*tables.track(steps, "answering", len(prompts))])
    named = console.environment(config.model, llm.drafter_spec.name, llm.model.num_threads) | {
        "task": task
    }
    summary = (
        f"{task}: {figures['right']} of {figures['prompts']} right, {figures['score']:.1%} "
        f"[{figures['score_lo']:.1%}, {figures['score_hi']:.1%}]; "
        f"{figures['tau']:.2f} tokens per pass (tau)"
    )
    publish(
        named | {"quant": origin["quant"]} | figures,
        lambda: tables.report().print(summary),
        as_json=as_json,
    )
