"""`forerun generate`: complete one prompt, streaming."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli import _options as opt
from forerun.core.errors import ConfigError


def command(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads stdin.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the prompt here.")] = None,
    model: opt.Model = opt.DEFAULT_MODEL,
    drafter: opt.Drafter = "auto",
    draft_model: opt.DraftModel = None,
    num_draft: opt.NumDraft = None,
    speculative_config: opt.SpeculativeConfig = None,
    max_tokens: opt.MaxTokens = 256,
    temperature: opt.Temperature = 0.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    repetition_penalty: opt.RepetitionPenalty = 1.0,
    seed: opt.Seed = None,
    stop: opt.Stop = None,
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    raw: opt.Raw = False,
    controller: opt.Controller = True,
    device: opt.Device = "auto",
    backend: opt.Backend = "auto",
    quant: opt.Quant = "none",
    head_bits: opt.HeadBits = None,
    weight_cache: opt.WeightCache = True,
    threads: opt.Threads = None,
    max_model_len: opt.ContextSize = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print where the time went, phase by phase.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write a trace for chrome://tracing or Perfetto.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Complete a prompt; tokens the drafter guessed are tinted. Ctrl-C ends it and keeps what is there."""
    from forerun.cli import _console as console
    from forerun.engine.trace import Trace

    text = opt.read_prompt(prompt, file)
    params = opt.sampling(
        temperature=temperature,
        max_tokens=max_tokens,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop,
    )
    llm = opt.load(
        model,
        drafter,
        draft_model=draft_model,
        num_draft=num_draft,
        speculative_config=speculative_config,
        controller=controller,
        device=device,
        backend=backend,
        quant=quant,
        head_bits=head_bits,
        weight_cache=weight_cache,
        threads=threads,
        max_model_len=max_model_len,
    )
    tracer = Trace.attach(llm.engine) if profile or trace is not None else None
    meter = console.Meter(llm.engine)
    request = llm.submit(text if raw else opt.conversation(text, system), params)
    is_whole = console.show(llm.events(request))
    completion = request.output().outputs[0]
    measured = meter.read([completion])
    console.stderr().print(measured.line(llm.drafter_spec.name), style="dim")
    found = tracer.profile() if profile and tracer is not None else None
    if found is not None:
        console.print_profile(found)
    if trace is not None and tracer is not None:
        _write(trace, tracer.chrome())
    if as_json:
        figures = console.environment(model, llm.drafter_spec.name) | measured.document()
        reason = completion.finish_reason
        outcome = {"text": completion.text, "finish_reason": reason, "identical": None}
        console.print_json(figures | outcome | ({} if found is None else {"profile": found}))
    if not is_whole:
        raise typer.Exit(130)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the trace: {error}") from error
