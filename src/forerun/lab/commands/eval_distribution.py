"""`forerun eval distribution`: a test of the draw, with drafting."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Annotated

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.lab.output import publish


@opt.engine(
    without=("controller", "max_num_seqs"), controller=False, max_model_len=512
)  # more drafts prove more
@opt.sampling("top_k", "min_p")
def command(
    config: EngineConfig,
    params: SamplingParams,
    prompt: Annotated[
        list[str] | None, typer.Option(help="A text to go on; repeatable; default: ours.")
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option("--temperature", "--temp", help="Repeatable; default: 0.7 and 1."),
    ] = None,
    top_p: Annotated[
        list[float] | None, typer.Option(help="Repeatable; default: 0.9 and 1.")
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 3,
    samples: Annotated[int, typer.Option(help="Sequences of each check.")] = 1000,
    seed: Annotated[int, typer.Option("-s", "--seed", help="Of the first sample.")] = 0,
    false_alarm: Annotated[
        float, typer.Option(help="Chance that a right engine is called wrong.")
    ] = 1e-4,
    batch: Annotated[int, typer.Option(help="Sequences decoded together.")] = 32,
    as_json: opt.Json = False,
) -> None:
    """Test sampled sequences, drafted and verified, against the exact distribution. Exits 1 if a test fails."""
    from forerun.cli import console
    from forerun.core.errors import ConfigError
    from forerun.lab.contract import distribution

    opt.check_least("batch", batch, 1)
    if not 0 < false_alarm < 1:
        raise ConfigError(f"false_alarm must be above 0 and below 1, got {false_alarm}")
    settings = [
        replace(params, temperature=t, top_p=p)
        for t, p in product(temperature or (0.7, 1.0), top_p or (0.9, 1.0))
    ]
    llm = opt.load(config, max_num_seqs=batch)
    prompts = [llm.encode(text) for text in prompt or distribution.PROMPTS]
    steps = distribution.run(
        llm.engine, prompts, settings, length=length, num_samples=samples, seed=seed
    )
    watched = console.track(steps, "sampling", len(prompts) * len(settings))
    report = distribution.Report(tuple(c for checks in watched for c in checks), false_alarm)
    document = (
        console.environment(config.model, llm.drafter_spec.name, llm.model.num_threads)
        | report.document()
    )
    show = partial(distribution.show, report)
    publish(document, show, as_json=as_json, fails=bool(report.failed))
