"""`forerun chat`: a conversation in the terminal. Earlier turns stay in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt

if TYPE_CHECKING:
    from forerun.core.params import SamplingParams
    from forerun.llm import LLM

HELP = "/clear forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer"


def command(
    model: opt.Model = opt.DEFAULT_MODEL,
    drafter: opt.Drafter = "auto",
    draft_model: opt.DraftModel = None,
    num_draft: opt.NumDraft = None,
    speculative_config: opt.SpeculativeConfig = None,
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    max_tokens: opt.MaxTokens = None,
    temperature: opt.Temperature = 0.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    repetition_penalty: opt.RepetitionPenalty = 1.0,
    seed: opt.Seed = None,
    controller: opt.Controller = True,
    device: opt.Device = "auto",
    backend: opt.Backend = "auto",
    quant: opt.Quant = "none",
    head_bits: opt.HeadBits = None,
    weight_cache: opt.WeightCache = True,
    threads: opt.Threads = None,
    max_model_len: opt.ContextSize = None,
) -> None:
    """Talk with the model; tokens the drafter guessed are tinted."""
    params = opt.sampling(
        temperature=temperature,
        max_tokens=max_tokens,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
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
    _converse(llm, params, [{"role": "system", "content": system}] if system else [])


def _converse(llm: LLM, params: SamplingParams, opening: list[dict[str, str]]) -> None:
    from forerun.cli import _console as console
    from forerun.core.errors import CapacityError

    console.stderr().print(HELP, style="dim")
    messages = list(opening)
    while (said := _ask()) is not None:
        if said == "/clear":
            messages = list(opening)
            continue
        if not said:
            continue
        asked = [*messages, {"role": "user", "content": said}]
        meter = console.Meter(llm.engine)
        try:
            request = llm.submit(asked, params)
        except CapacityError as error:
            console.stderr().print(f"{error}; /clear starts anew", style="red")
            continue
        console.show(llm.events(request))
        answer = request.output().outputs[0]
        console.stderr().print(meter.read([answer]).line(llm.drafter_spec.name), style="dim")
        messages = [*asked, {"role": "assistant", "content": answer.text}]


def _ask() -> str | None:
    """A line from the user; None at the end of input."""
    try:
        line = input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    return None if line == "/quit" else line
