"""`forerun chat`: a conversation in the terminal. Earlier turns stay in the cache."""

from __future__ import annotations

from forerun.cli import _options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import CapacityError

HELP = "/clear forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer"


@opt.engine(without=("max_num_seqs",), max_num_seqs=1)
@opt.answering(max_tokens=512)
def command(config: EngineConfig, params: opt.Params, system: opt.System = None) -> None:
    """Talk with the model; tokens the drafter guessed are tinted."""
    from forerun.cli import _console as console

    llm = opt.load(config)
    console.stderr().print(HELP, style="dim")
    opening = [{"role": "system", "content": system}] if system else []
    messages = opening
    while (said := _ask()) is not None:
        if said == "/clear":
            messages = opening
            continue
        if not said:
            continue
        asked = [*messages, {"role": "user", "content": said}]
        try:
            answer, measured, _ = console.answer(llm, asked, params(llm))
        except CapacityError as error:
            console.stderr().print(f"{error}; /clear starts anew", style="red")
            continue
        console.stderr().print(measured.line(llm.drafter_spec.name), style="dim")
        messages = [*asked, {"role": "assistant", "content": answer.text}]


def _ask() -> str | None:
    """A line from the user; None at the end of input."""
    try:
        line = input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    return None if line == "/quit" else line
