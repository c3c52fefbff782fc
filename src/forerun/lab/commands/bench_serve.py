"""`forerun bench serve`: a server under load: throughput, latencies and goodput."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.core.errors import ConfigError
from forerun.lab.commands import _options as shared

if TYPE_CHECKING:
    from forerun.core.types import TaskPrompt

DEFAULT_LEN = 2048
"""Tokens of a sequence, where a model is given and --max-model-len is not."""


@opt.command()
@opt.argument(
    "model",
    required=False,
    help="A model to serve here meanwhile; with --url, the model's name there.",
)
@click.option("--url", metavar="URL", help="A server: http://HOST:PORT/v1.")
@click.option("--api-key", metavar="KEY", help="The key that it asks for.")
@click.option(
    "--request-rate",
    default=math.inf,
    type=float,
    help="Requests a second, on average; inf: all at once.",
)
@click.option(
    "--ramp-up",
    default=0.0,
    metavar="SECONDS",
    help="Begin the first requests, as many as run at once, spread over so long.",
)
@click.option(
    "--concurrency",
    "--max-concurrency",
    default="1,4,8",
    help="Requests at once, at most: N,N,... in turn.",
)
@click.option("--num-prompts", type=int, help="Requests of each load; default: every prompt once.")
@shared.prompt_file("--task")
@shared.categories
@click.option(
    "--input-len", type=int, help="Prompts of so many tokens, made of several; with MODEL."
)
@click.option("-n", "--max-tokens", default=128, help="Of an answer.")
@click.option("--temperature", default=0.0, help="0 is greedy.")
@click.option("--ignore-eos", is_flag=True, help="Answers of --max-tokens, from servers that can.")
@click.option("-s", "--seed", default=0, help="Of the prompts' order and of the arrivals.")
@click.option("--goodput", metavar="NAME:MS,...", help="Count answers within: ttft:200,tpot:20.")
@shared.rounds
@click.option("--peer", help="llama-server: the same file and load beside ours, in turns.")
@shared.peers_dir
@click.option("-t", "--threads", type=int, help="Of the servers; default: all cores.")
@click.option("-c", "--max-model-len", type=int, help="Tokens of a sequence there.")
@click.option("--server-args", default="", help="More for forerun serve, such as '-d none'.")
@shared.out_resumed
@opt.as_json
def command(
    model: str | None,
    url: str | None,
    api_key: str | None,
    request_rate: float,
    ramp_up: float,
    concurrency: str,
    num_prompts: int | None,
    task: str,
    categories: str | None,
    input_len: int | None,
    max_tokens: int,
    temperature: float,
    ignore_eos: bool,
    seed: int,
    goodput: str | None,
    rounds: int,
    peer: str | None,
    peers_dir: Path,
    threads: int | None,
    max_model_len: int | None,
    server_args: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure a server under load: requests and tokens a second, latencies and their percentiles, goodput.

    Requests arrive at random (Poisson) and stream chat answers. Give the address of any OpenAI server, or a model: it
    is served here until the measurement ends. Ctrl-C loses nothing that was measured.
    """
    from forerun.core.device import num_cores
    from forerun.hub.names import resolve
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import load, servers, serving, workload

    if url is None and model is None:
        raise ConfigError("give a model, or a server with --url http://HOST:PORT/v1")
    for flag, value in (("--peer", peer), ("--input-len", input_len)):
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
        systems = servers.systems(start, peer, peers_dir)
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
