"""`forerun serve`: an HTTP server with the APIs that clients know, and a chat page."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli import options as opt
from forerun.cli.help import Option
from forerun.core import sizes
from forerun.core.config import DRAFT_FIELDS, SHARED, EngineConfig
from forerun.core.errors import ConfigError
from forerun.server.config import MAX_TEXTS, ServerConfig
from forerun.system.device import num_cores, share_heaps, stay_on_one_socket
from forerun.system.files import read_text

if TYPE_CHECKING:
    from forerun.engine.memory import MemoryPlan
    from forerun.llm import LLM
    from forerun.model.config import ModelConfig
    from forerun.server.models import ModelSource

SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "seed", "max_tokens"),
)
"""Sampling parameters of requests that do not give their own."""


@opt.command()
@opt.engine(is_parallel=True, prompt_cache=SHARED)
@opt.answering(*SAMPLING, max_tokens=None)
@opt.serving()
@opt.argument(
    "models",
    nargs=-1,
    metavar="MODEL...",
    help="The models, as --model, which may be given more than once too.",
)
@click.option(
    "--api-key-file",
    type=opt.PATH,
    cls=Option,
    group="Listening",
    metavar="FILE",
    help="Read the key here: all users of a machine can see its command lines.",
)
@opt.no_prompt_cache
@click.option(
    "--no-shared-drafts",
    is_flag=True,
    cls=Option,
    group="Drafting",
    help="Never draft from what other requests said; auto is suffix then.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1),
    cls=Option,
    group="More machines",
    metavar="N",
    help="Answer with N processes on Ray Serve, each with --threads; needs the extra ray.",
)
@click.option(
    "--ray-address",
    cls=Option,
    group="More machines",
    metavar="HOST:PORT",
    help="Join the Ray that runs there (auto: on this machine); else one is started.",
)
def command(
    config: EngineConfig,
    settings: ServerConfig,
    params: opt.Params,
    models: tuple[str, ...],
    api_key_file: Path | None,
    no_prompt_cache: bool,
    no_shared_drafts: bool,
    replicas: int | None,
    ray_address: str | None,
) -> None:
    """Serve models over HTTP: the APIs of OpenAI, Anthropic, llama.cpp and Ollama, and a chat page.

    The address is http://127.0.0.1:8000 unless options say another.

    Of several the first is loaded at the start, the others when a request names them. Requests that come at once
    share the passes over the weights. SIGTERM and Ctrl-C let running requests finish; a second one ends at once.
    """
    if ray_address is not None and replicas is None:
        raise ConfigError("--ray-address is for replicas: give --replicas N")
    if replicas is not None and config.tensor_parallel_size > 1:
        raise ConfigError("give --replicas or a number of processes for one model, not both")
    config = opt.for_this_rank(config)
    names = [*dict.fromkeys([*opt.given_models(), *models])] or [config.model]
    for name in names:
        opt.offer(name)  # before torch is imported, which takes seconds
    try:
        from forerun.server.run import serve
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"forerun serve needs {error.name}: pip install '.[serve]' in a clone brings it"
        ) from error

    settings = _completed(settings, api_key_file)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    if config.threads is None and replicas is None and (text := stay_on_one_socket()):
        logging.getLogger(__name__).warning(text)
    threads = config.threads or max(1, num_cores() // (replicas or 1))
    config = without_sharing(config) if no_shared_drafts else config
    num_vectors = MAX_TEXTS if settings.embeddings else 0
    config = replace(config, is_server=True, num_vectors=num_vectors, threads=threads)
    config = replace(config, prompt_cache=None) if no_prompt_cache else config
    configs, budget = _configs(config, names), config.budget_nbytes
    template = opt.read_template(settings.chat_template)
    sources = [_source(each, template, is_one=len(configs) == 1) for each in configs]
    check = partial(_check, sources, has_budget=budget is not None)
    if replicas is not None:
        _serve_replicas(configs, settings, params, template, (replicas, ray_address), check)
        return
    share_heaps()
    if budget is not None:
        _print_line(f"memory: at most {sizes.mebibytes(budget)}")
    serve(sources, settings, _print_line, params.body(), configs[0].budget_nbytes, check=check)


def _completed(settings: ServerConfig, api_key_file: Path | None) -> ServerConfig:
    """Read the key, and choose whether requests are logged. Raises ConfigError."""
    if api_key_file is not None:
        if settings.api_key is not None:
            raise ConfigError("give the key with --api-key or --api-key-file, not both")
        settings = replace(settings, api_key=read_text(api_key_file).strip())
    if settings.log_requests is None:
        settings = replace(settings, log_requests=sys.stderr.isatty())
    return settings


def _configs(config: EngineConfig, names: Sequence[str]) -> list[EngineConfig]:
    """Return the configuration of each model. Raises ConfigError."""
    from forerun.engine.memory import DROPPED_NBYTES

    if len(names) > 1 and config.tensor_parallel_size > 1:
        raise ConfigError("--tensor-parallel-size is for one model: leave out the others")
    if len(names) > 1 and config.budget_nbytes is not None:
        config = replace(config, memory_budget=max(config.budget_nbytes - DROPPED_NBYTES, 1))
    return [replace(config, model=name) for name in names]


def _serve_replicas(
    configs: Sequence[EngineConfig],
    settings: ServerConfig,
    params: opt.Params,
    template: str | None,
    where: tuple[int, str | None],
    check: Callable[[], object],
) -> None:
    """Serve by so many processes of the Ray at an address, None for one of our own. Raises ConfigError, LoadError."""
    try:
        from forerun.server.ray.replica import ReplicaPlan
        from forerun.server.ray.run import serve_replicas
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--replicas needs {error.name}: pip install '.[ray]' in a clone brings it"
        ) from error
    plan = ReplicaPlan(tuple(configs), settings, params.body(), template)
    serve_replicas(plan, *where, _print_line, check)


def without_sharing(config: EngineConfig) -> EngineConfig:
    """Give a configuration a drafter that never drafts from another request's tokens; `suffix` for auto.

    Raises ConfigError for a drafter that cannot.
    """
    from forerun.core import registry
    from forerun.drafters.base.find import method_of
    from forerun.drafters.base.spec import DrafterSpec
    from forerun.model.kernels import native

    spec = DrafterSpec.of_config(config)
    if spec.is_auto and native.available():
        spec = DrafterSpec.of("suffix")
    for part in spec.parts or (spec,):
        if part.unshared() is None:
            allowed = [name for name in registry.names("drafters") if method_of(name).unshared]
            raise ConfigError(
                f"drafter {part.name} can draft from other requests' text, which --no-shared-drafts forbids "
                f"(allowed: {', '.join(allowed)})"
            )
    alone = spec.unshared()
    assert alone is not None
    unset: dict[str, Any] = dict.fromkeys(DRAFT_FIELDS)
    return replace(config, drafter=alone.text(), draft_options={}, **unset)


def _load(config: EngineConfig, template: str | None) -> LLM:
    llm = opt.load(config)
    if template is not None:
        llm.tokenizer.use_chat_template(template)
    return llm


def _source(config: EngineConfig, template: str | None, *, is_one: bool) -> ModelSource:
    """Make what the server knows of a model that is not loaded."""
    from forerun.server.models import ModelSource

    own_config = cache(lambda: config if is_one else _of_its_own(config))
    plan = cache(lambda: _plan(own_config()))
    return ModelSource(
        config.model,
        lambda: _load(own_config(), template),
        lambda: plan().total,
        cache(
            lambda: (
                _max_len(own_config()) if config.budget_nbytes is None else plan().workload.max_len
            )
        ),
    )


def _of_its_own(config: EngineConfig) -> EngineConfig:
    """Cut the context that is asked for of several models to what this one has. Raises LoadError."""
    asked = config.max_model_len
    if asked is None:
        return config
    return replace(config, max_model_len=min(asked, _model_config(config).max_position))


def _model_config(config: EngineConfig) -> ModelConfig:
    from forerun.hub.names import resolve
    from forerun.model.loader import read_config
    from forerun.weights.checkpoint import open_checkpoint

    return read_config(open_checkpoint(resolve(config.model)))[0]


def _max_len(config: EngineConfig) -> int:
    from forerun.engine.planner import max_len_of

    return max_len_of(config, _model_config(config))


def _plan(config: EngineConfig) -> MemoryPlan:
    """Plan a model that has the whole budget to itself. Raises LoadError, CapacityError."""
    from forerun.llm import planner_of

    assert config.budget_nbytes is not None
    return planner_of(config).fit(config.budget_nbytes)


def _check(sources: Sequence[ModelSource], *, has_budget: bool) -> None:
    """Raise LoadError for a model that is none, CapacityError for one of several that no budget will hold."""
    from forerun.hub.names import resolve
    from forerun.weights.checkpoint import open_checkpoint

    for source in sources:
        open_checkpoint(resolve(source.model))
        if len(sources) > 1:
            source.max_len()
            if has_budget:
                source.nbytes()


def _print_line(line: str) -> None:
    os.write(2, f"{line}\n".encode())  # also inside of a signal's handler
