"""`forerun bench serve`: a server under load: throughput, latencies and goodput."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import options as opt
from forerun.core.errors import ConfigError
from forerun.lab.commands import _options as shared

if TYPE_CHECKING:
    from forerun.core.types import TaskPrompt

DEFAULT_LEN = 2048
"""Tokens of a sequence, where a model is given and --max-model-len is not."""

Model = Annotated[
    str | None,
    typer.Argument(help="A model to serve here meanwhile; with --url, the model's name there."),
]
Url = Annotated[str | None, typer.Option(metavar="URL", help="A server: http://HOST:PORT/v1.")]
RequestRate = Annotated[
    float, typer.Option(help="Requests a second, on average; inf: all at once.")
]
RampUp = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Begin the first requests, as many as run at once, spread over so long.",
    ),
]
Concurrency = Annotated[
    str,
    typer.Option(
        "--concurrency", "--max-concurrency", help="Requests at once, at most: N,N,... in turn."
    ),
]
NumPrompts = Annotated[
    int | None, typer.Option(help="Requests of each load; default: every prompt once.")
]
InputLen = Annotated[
    int | None, typer.Option(help="Prompts of so many tokens, made of several; with MODEL.")
]
MaxTokens = Annotated[int, typer.Option("-n", "--max-tokens", help="Of an answer.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Answers of --max-tokens, from servers that can.")
]
Seed = Annotated[
    int, typer.Option("-s", "--seed", help="Of the prompts' order and of the arrivals.")
]
Goodput = Annotated[
    str | None, typer.Option(metavar="NAME:MS,...", help="Count answers within: ttft:200,tpot:20.")
]
Peer = Annotated[
    str | None, typer.Option(help="llama-server: the same file and load beside ours, in turns.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="The same load in this process too, without a server.")
]
Threads = Annotated[
    int | None, typer.Option("-t", "--threads", help="Of the servers; default: all cores.")
]
MaxModelLen = Annotated[
    int | None, typer.Option("-c", "--max-model-len", help="Tokens of a sequence there.")
]
ServerArgs = Annotated[str, typer.Option(help="More for forerun serve, such as '-d none'.")]


def command(
    model: Model = None,
    url: Url = None,
    api_key: shared.ApiKey = None,
    request_rate: RequestRate = math.inf,
    ramp_up: RampUp = 0.0,
    concurrency: Concurrency = "1,4,8",
    num_prompts: NumPrompts = None,
    task: shared.PromptFile = "builtin",
    categories: shared.Categories = None,
    input_len: InputLen = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    ignore_eos: IgnoreEos = False,
    seed: Seed = 0,
    goodput: Goodput = None,
    rounds: shared.Rounds = 1,
    peer: Peer = None,
    offline: Offline = False,
    peers_dir: shared.PeersDir = Path(".peers"),
    threads: Threads = None,
    max_model_len: MaxModelLen = None,
    server_args: ServerArgs = "",
    out: shared.OutResumed = None,
    as_json: opt.Json = False,
) -> None:
    """Measure a server under load: requests and tokens a second, latencies and their percentiles, goodput.

    Requests arrive at random (Poisson) and stream chat answers. Give the address of any OpenAI server, or a model: it
    is served here until the measurement ends. Ctrl-C keeps what was measured.
    """
    from forerun.core.device import num_cores
    from forerun.hub.names import resolve
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import load, servers, serving, workload

    if url is None and model is None:
        raise ConfigError("give a model, or a server with --url http://HOST:PORT/v1")
    for flag, value in (("--peer", peer), ("--offline", offline), ("--input-len", input_len)):
        if url is not None and value:
            raise ConfigError(f"{flag} needs a model that is served here: leave out --url")
    opt.check_least("max_tokens", max_tokens, 1)
    opt.check_least("input_len", input_len, 1)
    levels, within = _levels(concurrency), serving.bounds(goodput)
    prompts = load.draw(workload.only(read(task), opt.names(categories)), num_prompts, seed)
    if input_len is not None:
        prompts = _lengthened(prompts, input_len, str(model))
    body = {"max_tokens": max_tokens, "temperature": temperature}
    body |= {"ignore_eos": True} if ignore_eos else {}
    loads = [load.Load(prompts, body, level, request_rate, seed, ramp_up) for level in levels]
    if url is not None:
        name, systems = servers.remote(url, api_key, model, len(loads) * rounds)
    else:
        file, sizes = resolve(str(model)), (threads or num_cores(), max_model_len or DEFAULT_LEN)
        start = servers.Start(file, max(levels), *sizes, shlex.split(server_args))
        systems = servers.systems(start, peer, peers_dir, offline=offline)
        name = Path(str(model)).stem
    origin = {"task": Path(task).stem, "input_len": input_len, "server_args": server_args}
    run = partial(serving.run, name, systems, loads, origin | {"url": url})
    run(rounds=rounds, out=out, within=within, as_json=as_json)


def _levels(given: str) -> list[int]:
    """The numbers of requests at once."""
    try:
        return [int(part) for part in opt.names(given)] or [1]
    except ValueError:
        raise ConfigError(f"--concurrency takes numbers, such as 1,4,8, got {given!r}") from None


def _lengthened(prompts: Sequence[TaskPrompt], input_len: int, model: str) -> list[TaskPrompt]:
    from forerun.hub.names import resolve
    from forerun.lab.bench import workload
    from forerun.weights.checkpoint import open_checkpoint

    tokenizer = open_checkpoint(resolve(model)).tokenizer()
    encode = partial(tokenizer.encode, bos=False)
    return workload.lengthened(prompts, input_len, encode, tokenizer.decode)
