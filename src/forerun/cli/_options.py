"""Options that several commands share, spelled once; llama.cpp's and vLLM's spellings are read too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.formats.hub import DEFAULT_MODEL as DEFAULT_MODEL

if TYPE_CHECKING:
    from forerun.llm import LLM

Model = Annotated[
    str, typer.Option("-m", "--model", help="A known name, a path (GGUF or folder) or a hub name.")
]
Drafter = Annotated[
    str,
    typer.Option(
        "-d",
        "--drafter",
        "--spec-type",
        help="auto, none, NAME:option=value,... or two joined by +.",
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "-md",
        "--draft-model",
        "--model-draft",
        help="A smaller model that drafts; implies -d draft_model.",
    ),
]
NumDraft = Annotated[
    int | None,
    typer.Option(
        "--num-draft",
        "--draft-max",
        "--draft",
        "--spec-draft-n-max",
        help="Tokens drafted a step, at most.",
    ),
]
SpeculativeConfig = Annotated[
    str | None, typer.Option("--speculative-config", help="vLLM's JSON, instead of -d.")
]
Controller = Annotated[
    bool,
    typer.Option(
        "--controller/--no-controller", help="Draft only as much as pays; else always in full."
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Backend = Annotated[
    str, typer.Option("--backend", help="auto, native (CPU kernels) or torch (fp32).")
]
HeadBits = Annotated[
    int | None,
    typer.Option("--head-bits", help="4 or 8: round the output head. Faster; changes the model."),
]
Quant = Annotated[
    str,
    typer.Option(
        "--quant", help="int8 or int4: round the weights; none keeps them. Changes the model."
    ),
]
WeightCache = Annotated[
    bool,
    typer.Option(
        "--weight-cache/--no-weight-cache", help="Keep packed weights on disk: starts are quicker."
    ),
]
Threads = Annotated[
    int | None, typer.Option("-t", "--threads", help="CPU threads; default: physical cores.")
]
ContextSize = Annotated[
    int | None,
    typer.Option(
        "-c", "--max-model-len", "--ctx-size", help="Tokens of prompt and answer, at most."
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option("-n", "--max-tokens", "--n-predict", help="New tokens, at most.")
]
Temperature = Annotated[
    float, typer.Option("--temperature", "--temp", help="0 is greedy: the same words every time.")
]
TopK = Annotated[int, typer.Option("--top-k", help="Keep the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens up to this mass.")]
MinP = Annotated[float, typer.Option("--min-p", help="Drop tokens below this share of the best.")]
RepetitionPenalty = Annotated[
    float,
    typer.Option("--repetition-penalty", "--repeat-penalty", help="Above 1 discourages repeats."),
]
Seed = Annotated[int | None, typer.Option("-s", "--seed", help="Makes sampling repeatable.")]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", "-r", "--reverse-prompt", help="End at this text; repeatable."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document as the last line on stdout.")
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Complete the text as it is, without the chat template.")
]


def load(
    model: str,
    drafter: str = "auto",
    *,
    draft_model: str | None = None,
    num_draft: int | None = None,
    speculative_config: str | None = None,
    device: str = "auto",
    backend: str = "auto",
    quant: str = "none",
    head_bits: int | None = None,
    weight_cache: bool = True,
    threads: int | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int = 1,
    controller: bool = True,
    draft_budget: int | None = None,
) -> LLM:
    """Load the model a command was given, with a line on stderr while it takes its time."""
    from forerun.cli._console import stderr, working
    from forerun.core.device import set_threads
    from forerun.kernels import native
    from forerun.llm import DRAFT_BUDGET, LLM

    set_threads(threads)
    with working(f"loading {model}"):
        llm = LLM(
            model,
            drafter=drafter,
            draft_model=draft_model,
            num_draft=num_draft,
            speculative_config=_read_json(speculative_config),
            device=device,
            backend=backend,  # checked by the loader
            quant=quant,  # type: ignore[arg-type]  # checked by the loader
            head_bits=head_bits,
            weight_cache=weight_cache,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            controller=controller,
            draft_budget=DRAFT_BUDGET if draft_budget is None else draft_budget,
        )
    if backend == "auto" and llm.device.type == "cpu" and not native.available():
        stderr().print(native.summary(), style="yellow")
    return llm


def sampling(
    *,
    temperature: float = 0.0,
    max_tokens: int | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    stop: list[str] | None = None,
) -> SamplingParams:
    """Sampling parameters from a command's options; -1 means no limit, as in llama.cpp."""
    return SamplingParams(
        temperature=temperature,
        max_tokens=None if max_tokens == -1 else max_tokens,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=None if seed == -1 else seed,
        stop=tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in stop or ()),
    )


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt as given, from a file, or from stdin for `-`."""
    if prompt is not None and file is not None:
        raise ConfigError("give a prompt or --file, not both")
    try:
        if prompt == "-" or (file is not None and str(file) == "-"):
            return typer.get_text_stream("stdin").read()
        if file is not None:
            return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompt: {error}") from error
    if prompt is None:
        raise ConfigError("no prompt: give one as an argument, with --file PATH, or - for stdin")
    return prompt


def _read_json(text: str | None) -> dict[str, object] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--speculative-config is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("--speculative-config must be a JSON object")
    return value


def conversation(text: str, system: str | None = None) -> list[dict[str, str]]:
    """One user message, after a system message if there is one."""
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": text}]


def check_least(name: str, value: int | None, least: int) -> None:
    """Raise ConfigError for a number that is given but too small."""
    if value is not None and value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
