"""`forerun demo`: one prompt with plain decoding, then with drafting, and the speed-up, in half a minute."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.cli.help import next_steps
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams

if TYPE_CHECKING:
    from forerun.cli.console import Measured
    from forerun.engine.outputs import CompletionOutput
    from forerun.llm import LLM, Prompt


@opt.command()
@opt.engine(without=("max_num_seqs",), max_num_seqs=1)
@opt.sampling("max_tokens", max_tokens=160)
@click.option("--prompt-id", default="summary-1", help="Which of the built-in prompts.")
@opt.as_json
def command(
    config: EngineConfig,
    params: SamplingParams,
    prompt_id: str,
    as_json: bool,
) -> None:
    """Generate one prompt with plain decoding and with drafting, compare the tokens, show the speed-up."""
    from rich.text import Text

    from forerun.cli import console, tables
    from forerun.core.errors import ConfigError, unknown
    from forerun.hub.prompt_sets import read

    prompts = {prompt.id: prompt.turns[0] for prompt in read()}
    if prompt_id not in prompts:
        raise ConfigError(unknown("prompt", prompt_id, prompts))
    llm = opt.load(config)
    if not as_json:
        click.secho(prompts[prompt_id], italic=True)
    plain_llm = llm.with_drafter("none")
    for each in (plain_llm, llm):  # the first request is slower
        each.generate([opt.conversation("Say hello.")], replace(params, max_tokens=4))
    asked, with_drafter = opt.conversation(prompts[prompt_id]), f"with {llm.drafter_spec.name}"
    plain_out, plain = _run(plain_llm, asked, params, None if as_json else "plain")
    drafted_out, drafted = _run(llm, asked, params, None if as_json else with_drafter)
    identical = plain_out.token_ids == drafted_out.token_ids
    speedup = drafted.tok_s / plain.tok_s if plain.tok_s else 0.0
    stats = drafted.stats
    if as_json:
        outcome = {"speedup": round(speedup, 3), "identical": identical}
        console.print_json(drafted.document(llm) | outcome)
    else:
        tables.report().print(
            Text.assemble(
                f"{drafted.tok_s:.1f} tok/s instead of {plain.tok_s:.1f}; "
                f"{console.tokens_per_pass(stats.tau)}; "
                f"accepted {stats.accepted} of {stats.drafted}; speed-up ",
                (f"{speedup:.2f}x", "bold"),
                "; identical: ",
                ("yes" if identical else "NO", "bold"),
            )
        )
        click.echo(f"\n{next_steps()}")
    if not identical:
        raise click.exceptions.Exit(1)


def _run(
    llm: LLM, prompt: Prompt, params: SamplingParams, heading: str | None
) -> tuple[CompletionOutput, Measured]:
    """Print the answer as it comes under a heading; without one print nothing."""
    from forerun.cli import console, tables

    if heading is not None:
        tables.report().rule(heading)
    shown = heading is not None
    completion, measured, is_complete = console.answer(llm, prompt, params, shown=shown)
    if not is_complete:
        raise click.exceptions.Exit(130)
    return completion, measured
