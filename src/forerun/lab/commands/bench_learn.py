"""`forerun bench learn`: what a drafter gains by learning while it serves, on requests of one topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from forerun.cli import options as opt
from forerun.core.config import DRAFT_FIELDS, EngineConfig
from forerun.core.params import SamplingParams
from forerun.lab import provenance
from forerun.lab.output import publish

if TYPE_CHECKING:
    from forerun.lab.bench.learning import RequestPair
    from forerun.llm import LLM


@opt.engine(
    without=(*DRAFT_FIELDS, "max_num_seqs", "memory_budget", "learn"),
    max_model_len=2048,
)
@opt.sampling("max_tokens", "temperature", "seed", max_tokens=128, seed=0)
def command(
    config: EngineConfig,
    params: SamplingParams,
    task: str = typer.Option(
        "builtin", help="builtin, or a file of prompts (.jsonl, or one a line)."
    ),
    limit: int | None = typer.Option(None, help="Only the first so many."),
    raw: opt.Raw = False,
    out: Path | None = typer.Option(None, help="JSON of the results; a plot is drawn beside it."),
    plots: bool = typer.Option(True, "--plots/--no-plots", help="Draw PNG and SVG."),
    as_json: opt.Json = False,
) -> None:
    """Answer prompts one after the other, with a drafter that learns between them and with one that does not.

    Nothing that was kept of earlier requests is used, and nothing is kept. Exits 1 if a token differs.
    """
    from forerun.cli import console
    from forerun.core.errors import ConfigError
    from forerun.drafting.spec import DrafterSpec
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import learning
    from forerun.lab.bench.workload import choose

    spec = DrafterSpec.of_config(config)
    if not spec.keeps():
        raise ConfigError(f"drafter {spec.text()} learns nothing: try mlp_speculator or recycling")
    prompts = choose(read(task), None)[:limit]
    llm = opt.load(config, max_num_seqs=1)
    spec = spec.for_target(llm.target())
    with TemporaryDirectory() as folder:
        both = (
            llm.with_drafter(
                spec.build(replace(llm.target(), learn=is_learning, learned_in=Path(folder)))
            )
            for is_learning in (False, True)
        )
        fixed, learner = both
        named = [(prompt.id, _encoded(llm, prompt.turns[0], raw=raw)) for prompt in prompts]
        answered: list[RequestPair] = []
        with console.counter("answering", len(named)) as show:
            for each in learning.run(fixed.loop, learner.loop, named, params):
                answered.append(each)
                show(len(answered))
        found = learning.summary(answered)
    origin = provenance.origin(
        config, llm, task=Path(task).stem, drafter=spec.text(), max_tokens=params.max_tokens,
        temperature=params.temperature, seed=params.seed, raw=raw,
    )  # fmt: skip
    document = {"provenance": origin, "summary": found, "requests": [*map(asdict, answered)]}

    def draw(folder: Path, stem: str) -> None:
        from forerun.lab.bench.plots import draw_run

        draw_run("learning", learning.moving(answered), folder, stem, title=str(origin["model"]))

    publish(
        document,
        lambda: learning.show(found, answered),
        as_json=as_json,
        out=out,
        draw=draw if plots else None,
        fails=found["identical"] != len(answered),
        why="learning changed tokens",
    )


def _encoded(llm: LLM, text: str, *, raw: bool) -> Sequence[int]:
    is_chat = not raw and llm.tokenizer.chat_template is not None
    return llm.encode([{"role": "user", "content": text}] if is_chat else text)
