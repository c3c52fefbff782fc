"""`forerun eval distribution`: a test of the draw, with drafting."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.lab.output import publish


@opt.command()
@opt.engine(  # more drafts prove more
    without=("controller", "max_num_seqs"), controller=False, max_model_len=512
)
@opt.sampling("top_k", "min_p")
@click.option("--prompt", multiple=True, help="A text to go on; repeatable; default: ours.")
@click.option(
    "--temperature", "--temp", multiple=True, type=float, help="Repeatable; default: 0.7 and 1."
)
@click.option("--top-p", multiple=True, type=float, help="Repeatable; default: 0.9 and 1.")
@click.option("--length", default=3, help="Tokens of a sequence.")
@click.option("--samples", default=1000, help="Sequences of each check.")
@click.option("-s", "--seed", default=0, help="Of the first sample.")
@click.option("--false-alarm", default=1e-4, help="Chance that a right engine is called wrong.")
@click.option("--batch", default=32, help="Sequences decoded together.")
@opt.as_json
def command(
    config: EngineConfig,
    params: SamplingParams,
    prompt: tuple[str, ...],
    temperature: tuple[float, ...],
    top_p: tuple[float, ...],
    length: int,
    samples: int,
    seed: int,
    false_alarm: float,
    batch: int,
    as_json: bool,
) -> None:
    """Test sampled sequences, drafted and verified, against the exact distribution. Exits 1 if a test fails."""
    from forerun.cli import console, tables
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
    watched = tables.track(steps, "sampling", len(prompts) * len(settings))
    report = distribution.Report(tuple(c for checks in watched for c in checks), false_alarm)
    document = (
        console.environment(config.model, llm.drafter_spec.name, llm.model.num_threads)
        | report.document()
    )
    show = partial(distribution.show, report)
    publish(document, show, as_json=as_json, fails=bool(report.failed))
