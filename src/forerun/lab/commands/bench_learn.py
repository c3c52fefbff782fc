"""`forerun bench learn`: what a drafter gains by learning while it serves, on requests of one topic."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forerun.cli import options as opt
from forerun.core.config import DRAFT_FIELDS, EngineConfig
from forerun.core.params import SamplingParams
from forerun.lab import provenance
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish


@opt.engine(
    without=(*DRAFT_FIELDS, "max_num_seqs", "memory_budget", "learn"),
    max_model_len=2048,
)
@opt.sampling("max_tokens", "temperature", "seed", max_tokens=128, seed=0)
def command(
    config: EngineConfig,
    params: SamplingParams,
    task: shared.PromptFile = "builtin",
    limit: Annotated[int | None, typer.Option(help="Only the first so many.")] = None,
    raw: opt.Raw = False,
    out: shared.OutDrawn = None,
    plots: shared.Plots = True,
    as_json: opt.Json = False,
) -> None:
    """Answer prompts one after the other, with a drafter that learns between them and with one that does not.

    Nothing that was kept of earlier requests is used, and nothing is kept. Exits 1 if a token differs.
    """
    from forerun.core.errors import ConfigError
    from forerun.drafting.spec import DrafterSpec
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import learning
    from forerun.lab.bench.plots import plot

    spec = DrafterSpec.of_config(config)
    if not spec.keeps():
        raise ConfigError(f"drafter {spec.text()} learns nothing: try mlp_speculator or recycling")
    prompts = read(task)[:limit]
    llm = opt.load(config, max_num_seqs=1)
    spec = spec.for_target(llm.target())
    is_chat = not raw and llm.tokenizer.chat_template is not None
    named = [
        (p.id, llm.encode(opt.conversation(p.turns[0]) if is_chat else p.turns[0])) for p in prompts
    ]
    answered = learning.run(llm, spec, named, params)
    found = learning.summary(answered)
    origin = provenance.origin(
        config, llm, task=Path(task).stem, drafter=spec.text(), max_tokens=params.max_tokens,
        temperature=params.temperature, seed=params.seed, raw=raw,
    )  # fmt: skip
    document = {"provenance": origin, "summary": found, "requests": [*map(asdict, answered)]}
    publish(
        document,
        lambda: learning.show(found, answered),
        as_json=as_json,
        out=out,
        draw=plot("learning", learning.moving(answered), origin) if plots else None,
        fails=found["identical"] != len(answered),
        why="learning changed tokens",
    )
