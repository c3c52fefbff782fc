"""`forerun eval distribution`: a test that drafting changes no probability."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

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
    prompt: list[str] | None = typer.Option(
        None, help="A text to go on; repeatable; default: ours."
    ),
    temperature: list[float] | None = typer.Option(
        None, "--temperature", "--temp", help="Repeatable; default: 0.7 and 1."
    ),
    top_p: list[float] | None = typer.Option(None, help="Repeatable; default: 0.9 and 1."),
    length: int = typer.Option(3, help="Tokens of a sequence."),
    samples: int = typer.Option(1000, help="Sequences of each check."),
    seed: int = typer.Option(0, "-s", "--seed", help="Of the first sample."),
    false_alarm: float = typer.Option(1e-4, help="Chance that a right engine is called wrong."),
    batch: int = typer.Option(32, help="Sequences decoded together."),
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
    document = console.environment(config.model, llm.drafter_spec.name) | report.document()
    show = partial(distribution.show, report)
    publish(document, show, as_json=as_json, fails=bool(report.failed))
