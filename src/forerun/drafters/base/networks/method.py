"""What the methods of trained networks share: how one is found, read, compared with its target, built and declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from forerun.core.errors import LoadError, short_repr
from forerun.drafters.base.contract import Method, Target, as_given
from forerun.drafters.base.draft_head import cut_list
from forerun.drafters.base.networks.folder import check_target, open_network
from forerun.drafters.base.networks.network import Network
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.networks.trained import UNTRAINED, Config, TrainedNetwork
from forerun.model.kernels import native
from forerun.weights.base import Checkpoint


class Reader(Protocol[Config]):
    """The module of a method that reads its files; what it raises need not name the file."""

    def check_sizes_of(self, file: Checkpoint, target: Target) -> object:
        """Raise LoadError for a network of another target, by its configuration and the names of its tensors."""
        ...

    def read(self, file: Checkpoint, target: Target) -> TrainedNetwork[Config]:
        """Read one for a target. Raises LoadError naming what is wrong."""
        ...

    def untrained(self, target: Target) -> TrainedNetwork[Config]:
        """Make one of random weights."""
        ...


@dataclass(frozen=True)
class NetworkMethod(Generic[Config]):
    """A kind of trained networks."""

    title: str
    """What a file is called in messages, with its article: `a block drafter`."""
    kinds: tuple[str, ...]
    """The architectures and model types of its files."""
    reader: Reader[Config]
    kernels: Callable[[NetworkOptions, TrainedNetwork[Config], Target], Network]
    """Makes the network that runs beside a target, on its kernels. Raises LoadError."""
    mark: str = ""
    """A setting that files without a kind of these have."""
    find: Callable[[str, Target], str] = lambda model, target: model
    """Finds the file that a name means for a target. Raises LoadError."""
    names: tuple[str, ...] = ()
    """The names of files that depend on the target."""

    def check_kind(self, model: str) -> None:
        """Raise LoadError if there is no such network; for `Options`, so before a model is loaded."""
        if model in (UNTRAINED, *self.names):
            return
        file = open_network(model)
        types = (file.config.get(key) for key in ("model_type", "speculators_model_type"))
        found = [each for each in (file.architecture, *types) if isinstance(each, str)]
        if self.mark not in file.config and not {*found} & {*self.kinds}:
            raise LoadError(
                f"{file.path} holds {' '.join(map(short_repr, dict.fromkeys(found)))}, which is not {self.title}; "
                f"allowed: {', '.join(self.kinds)}"
            )

    def check(self, options: NetworkOptions, target: Target) -> None:
        """Compare a file with the target, by its headers. Raises LoadError."""
        if options.model not in (UNTRAINED, *self.names):
            with _opened(options.model) as file:
                check_target(file, target)
                self.reader.check_sizes_of(file, target)

    def read(self, model: str, target: Target) -> TrainedNetwork[Config]:
        """Read a network. Raises LoadError for one of another target, and naming a tensor that is wrong."""
        if model == UNTRAINED:
            return self.reader.untrained(target)
        with _opened(self.find(model, target)) as file:
            check_target(file, target)
            return self.reader.read(file, target)

    def build(self, options: NetworkOptions, target: Target) -> Network:
        """Let a network draft. Raises LoadError as `read` does, ConfigError for a list without its tokens."""
        native.require()
        trained = self.read(options.model, target)
        trained = trained.cut(cut_list(options.draft_vocab, target, trained.tokens))
        try:
            return self.kernels(options, trained, target)
        except LoadError as error:
            raise LoadError(f"{options.model}: {error}") from error

    def declared(
        self,
        options: type[NetworkOptions],
        grids: Mapping[str, Sequence[float]],
        **differences: Any,
    ) -> Method:
        """Declare the method; its example is a network of random weights, which `check-drafter` needs no file for."""
        return Method(
            check=self.check,
            unshared=as_given,
            example=lambda target: options(model=UNTRAINED, num_draft=12, min_chance=0),
            grids=grids,
            **differences,
        )


@contextmanager
def _opened(model: str) -> Iterator[Checkpoint]:
    """Open a network; LoadErrors of what is done with it name its file."""
    file = open_network(model)
    try:
        yield file
    except LoadError as error:
        if str(file.path) in str(error):
            raise
        raise LoadError(f"{file.path}: {error}") from error
