"""Who answers a load: servers that are started here or run elsewhere, and the engine without a server."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import typer

from forerun.cli import console
from forerun.cli import options as opt
from forerun.cli.help import USAGE_ERROR, Command
from forerun.core.config import EngineConfig
from forerun.core.device import num_cores
from forerun.core.errors import ConfigError, unknown
from forerun.core.params import SamplingParams
from forerun.hub.names import resolve
from forerun.lab.bench import servers
from forerun.lab.bench.load import Load, Run
from forerun.lab.bench.offline import OfflineRun
from forerun.llm import LLM
from forerun.server.client import Remote
from forerun.server.config import ServerConfig

OFFLINE = "offline"
DEFAULT_LEN = 2048
"""Tokens of a sequence, where a model is given and --max-model-len is not."""

Asks = Callable[[Load], Run | OfflineRun]
"""Begins a load."""
Systems = Mapping[str, Callable[[], AbstractContextManager[Asks]]]
"""By name: who answers, from a fresh start where it is started here."""


@dataclass(frozen=True, slots=True)
class Start:
    """How the servers are started: all with as many threads and tokens a sequence."""

    model: str
    places: int
    threads: int | None
    max_len: int | None
    peers_dir: Path
    server_args: str

    def systems(self, peer: str | None, *, offline: bool) -> Systems:
        """Ours, the peer if one is asked for, and the same engine without a server."""
        if peer not in (None, servers.LLAMA):
            raise ConfigError(unknown("peer", str(peer), [servers.LLAMA]))
        file = resolve(self.model)
        if peer is not None and file.suffix != ".gguf":
            raise ConfigError(f"--peer reads GGUF files only, and {file.name} is none")
        threads, max_len = self.threads or num_cores(), self.max_len or DEFAULT_LEN
        sizes = {"places": self.places, "threads": threads, "max_len": max_len}
        more = shlex.split(self.server_args)
        ours = partial(servers.ours, str(file), more=more, **sizes)
        found: dict[str, Callable[[], AbstractContextManager[Asks]]] = {}
        if offline:
            own = {"model": str(file), "max_num_seqs": self.places, "threads": threads}
            config = engine_config(more, **own, max_model_len=max_len)
            found[OFFLINE] = partial(_in_process, config)
        found[servers.OURS] = lambda: _over_http(ours())
        if peer is not None:
            theirs = partial(servers.llama, file, folder=self.peers_dir, **sizes)
            found[servers.LLAMA] = lambda: _over_http(theirs())
        return found


@contextmanager
def _over_http(server: AbstractContextManager[Remote]) -> Iterator[Asks]:
    with server as remote:
        yield lambda load: Run(load, remote)


@contextmanager
def _in_process(config: EngineConfig) -> Iterator[Asks]:
    """A model of its own, warmed up as servers are."""
    llm = LLM(config)
    llm.chat([{"role": "user", "content": "Say hello."}], SamplingParams(max_tokens=8))
    yield lambda load: OfflineRun(load, llm.loop, llm.encode)


def engine_config(arguments: Sequence[str], **own: object) -> EngineConfig:
    """What `forerun serve` makes of its arguments. Raises ConfigError."""
    found: list[EngineConfig] = []

    @opt.engine()
    @opt.serving()
    def serve(config: EngineConfig, settings: ServerConfig) -> None:
        found.append(replace(config, **own))  # type: ignore[arg-type]

    reader = typer.Typer(add_completion=False)
    reader.command(cls=Command)(serve)
    try:
        typer.main.get_command(reader).main(
            [*arguments], prog_name="forerun serve", standalone_mode=False
        )
    except USAGE_ERROR as error:
        raise ConfigError(f"--server-args: {error}") from error
    return found[0]


def there(url: str, api_key: str | None, model: str | None, num_loads: int) -> tuple[str, Systems]:
    """The model of a server that runs, and the server."""
    remote = Remote.of(url, api_key)
    name = str(remote.model(model)["id"])
    if num_loads > 1:
        why = "its caches know the prompts from the second load on: restart it to compare loads"
        console.stderr().print(f"the server keeps running between loads: {why}", style="yellow")
    return name, {remote.url: lambda: _over_http(nullcontext(replace(remote, name=name)))}
