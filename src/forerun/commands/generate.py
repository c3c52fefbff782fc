"""`forerun generate`: complete one prompt, streaming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError


@opt.engine(without=("max_num_seqs",), max_num_seqs=1)
@opt.answering(max_tokens=256)
def command(
    config: EngineConfig,
    params: opt.Params,
    prompt: Annotated[
        str | None,
        typer.Argument(help="The prompt. Text that is piped in follows it; - is stdin alone."),
    ] = None,
    text: Annotated[
        str | None, typer.Option("-p", "--prompt", help="The prompt, as llama.cpp takes it.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Read the prompt here.")
    ] = None,
    system: opt.System = None,
    raw: opt.Raw = False,
    json_schema: opt.JsonSchema = None,
    grammar: opt.Grammar = None,
    grammar_file: opt.GrammarFile = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print where the time went, phase by phase.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write a trace for chrome://tracing or Perfetto.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Answer a prompt; tokens the drafter guessed are tinted. Ctrl-C ends it and keeps what is there.

    The prompt goes through the model's chat template, as with llm.chat; --raw completes the text as it is, as
    llm.generate does. echo "..." | forerun generate reads stdin, and cat FILE | forerun generate "Summarize:" puts
    the file behind the prompt.
    """
    from forerun.cli import console

    if prompt is not None and text is not None:
        raise ConfigError("give the prompt once: as it is, or with -p")
    text = opt.read_prompt(text if prompt is None else prompt, file)
    if raw and system is not None:
        raise ConfigError("--raw leaves out the chat template, --system needs it: give one of them")
    form = opt.form(json_schema, grammar, grammar_file)
    llm = opt.load(config)
    asked_for = replace(params(llm), structured_outputs=form)
    tracer = llm.engine.start_trace() if profile or trace is not None else None
    asked = text if raw else opt.conversation(text, system)
    completion, measured, is_whole = console.answer(llm, asked, asked_for, shown=not as_json)
    console.stderr().print(measured.line(llm.drafter_spec.text()), style="dim")
    found = tracer.profile() if profile and tracer is not None else None
    if found is not None:
        console.print_profile(found)
    if trace is not None and tracer is not None:
        _write(trace, tracer.chrome())
    if as_json:
        outcome = {
            "text": completion.text,
            "token_ids": [*completion.token_ids],
            "finish_reason": completion.finish_reason,
        }
        profiled = {} if found is None else {"profile": found}
        console.print_json(outcome | measured.document(llm) | profiled)
    if not is_whole:
        raise typer.Exit(130)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the trace: {error}") from error
