"""`forerun demo`: the main job in half a minute: one prompt plainly, then with drafting, and what that gained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt

if TYPE_CHECKING:
    from forerun.cli._console import Measured
    from forerun.core.params import SamplingParams
    from forerun.llm import LLM, CompletionOutput


def command(
    model: opt.Model = opt.DEFAULT_MODEL,
    drafter: opt.Drafter = "auto",
    draft_model: opt.DraftModel = None,
    num_draft: opt.NumDraft = None,
    max_tokens: opt.MaxTokens = 160,
    prompt_id: Annotated[
        str, typer.Option("--prompt-id", help="Which of the built-in prompts.")
    ] = "summary-1",
    controller: opt.Controller = True,
    device: opt.Device = "auto",
    backend: opt.Backend = "auto",
    quant: opt.Quant = "none",
    head_bits: opt.HeadBits = None,
    weight_cache: opt.WeightCache = True,
    threads: opt.Threads = None,
    as_json: opt.Json = False,
) -> None:
    """Generate one prompt plainly and with drafting, compare the tokens, show the speed-up."""
    from rich.text import Text

    from forerun.cli import _console as console
    from forerun.core.errors import ConfigError, unknown
    from forerun.eval.prompts import read

    prompts = {prompt.id: prompt.turns[0] for prompt in read()}
    if prompt_id not in prompts:
        raise ConfigError(unknown("prompt", prompt_id, prompts))
    llm = opt.load(
        model,
        drafter,
        draft_model=draft_model,
        num_draft=num_draft,
        controller=controller,
        device=device,
        backend=backend,
        quant=quant,
        head_bits=head_bits,
        weight_cache=weight_cache,
        threads=threads,
    )
    params = opt.sampling(temperature=0.0, max_tokens=max_tokens)
    out = console.stdout()
    out.print(Text(prompts[prompt_id], style="italic"))
    plain_llm = llm.with_drafter("none")
    _warm_up(plain_llm)
    _warm_up(llm)
    plain_out, plain = _run(plain_llm, prompts[prompt_id], params, "plainly")
    drafted_out, drafted = _run(llm, prompts[prompt_id], params, f"with {llm.drafter_spec.name}")
    identical = plain_out.token_ids == drafted_out.token_ids
    speedup = drafted.tok_s / plain.tok_s if plain.tok_s else 0.0
    stats = drafted.stats
    out.print(
        Text.assemble(
            f"{drafted.tok_s:.1f} tok/s instead of {plain.tok_s:.1f}; tau {stats.tau:.2f}; "
            f"accepted {stats.accepted} of {stats.drafted}; speed-up ",
            (f"{speedup:.2f}x", "bold"),
            "; identical: ",
            ("yes" if identical else "NO", "bold"),
        )
    )
    if as_json:
        figures = console.environment(model, llm.drafter_spec.name) | drafted.document()
        console.print_json({**figures, "speedup": round(speedup, 3), "identical": identical})
    if not identical:
        raise typer.Exit(1)


def _warm_up(llm: LLM) -> None:
    llm.generate([opt.conversation("Say hello.")], opt.sampling(max_tokens=4))


def _run(
    llm: LLM, prompt: str, params: SamplingParams, how: str
) -> tuple[CompletionOutput, Measured]:
    from forerun.cli import _console as console

    console.stdout().rule(how)
    meter = console.Meter(llm.engine)
    request = llm.submit(opt.conversation(prompt), params)
    if not console.show(llm.events(request)):
        raise typer.Exit(130)
    completion = request.output().outputs[0]
    return completion, meter.read([completion])
