"""Which drafter, with which options: one value, however it was given.

`suffix:min_token_prob=0.2` on the command line, a mapping with `method`, separate options: all end as a `DrafterSpec`.
`suffix++draft_model:model=small.gguf` names two, which make one tree (`union`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from forerun.core import options, registry
from forerun.core.config import AUTO, DRAFT_FIELDS, EngineConfig
from forerun.core.errors import ConfigError, LoadError, given_as
from forerun.drafters.base import parse
from forerun.drafters.base.cascade import united
from forerun.drafters.base.contract import Drafter, Target
from forerun.drafters.base.draft_head import COUNTED_SIZE
from forerun.drafters.base.find import checked, find, method_of
from forerun.drafters.base.networks.native import runs_networks
from forerun.hub.published import Published, for_model
from forerun.model.kernels import native
from forerun.model.loader import read_config, step_nbytes, weights_nbytes
from forerun.model.model import pass_nbytes
from forerun.weights.checkpoint import open_checkpoint

_log = logging.getLogger(__name__)

MOST_COST = 0.15
"""Largest share of a target pass's bytes that a step of a draft model may read for `auto` to take it; others have
to be named."""
AUTO_NETWORKS = ("mtp", "mlp_speculator")
"""The methods whose network joins `auto` where the target's file has one, or one ships for it: the first."""


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A drafter's name, or the path of its file, and the options that differ from its defaults.

    `parts` are the drafters of a union, in order.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[DrafterSpec, ...] = ()
    is_auto: bool = field(default=False, compare=False)
    """No drafter was named: what ships for the model decides."""
    built: Drafter | None = None
    """A drafter that was given as an object; it serves one engine."""

    @classmethod
    def of(cls, drafter: str | Mapping[str, object] | Drafter, **given: object) -> DrafterSpec:
        """Read a name, `name:key=value,...` or a mapping with `method`, and separate options (None: not given).

        A name may be the path of a Python file; a drafter itself is taken as it is. A `model` without a method means
        `draft_model`, `ngram_max` without one prompt lookup: no option is ignored. Raises ConfigError.
        """
        extra = {key: value for key, value in given.items() if value is not None}
        if not isinstance(drafter, str | Mapping):
            name = type(drafter).__name__
            if extra:
                raise ConfigError(f"a {name} is built: it takes no option '{next(iter(extra))}'")
            return cls(name, built=checked(drafter, name))
        chosen: dict[str, object] = {}
        if isinstance(drafter, Mapping):
            chosen = {key: value for key, value in drafter.items() if value is not None}
            drafter = str(chosen.pop("method", AUTO))
        if len(parts := parse.split_parts(drafter)) > 1:
            return cls._combined(parts, _merged(chosen, extra))
        method, texts = options.parse(drafter)
        known = _merged({**texts, **chosen}, extra)
        is_auto = method == AUTO
        if is_auto and (model := known.pop("partner", known.get("model"))) is not None:
            return cls._with_partner({**known, "model": model})
        name = parse.implied(known) if is_auto else parse.named(method)
        names = parse.option_names(name) if known else []
        for key, value in known.items():
            parse.check_option(key, value, name if is_auto else method, names)
        return cls(name, known, is_auto=is_auto and not known)

    @classmethod
    def of_config(cls, config: EngineConfig) -> DrafterSpec:
        """Read an engine's configuration. Raises ConfigError, for options too, before anything is loaded."""
        given = {option: getattr(config, name) for name, option in DRAFT_FIELDS.items()}
        with given_as({DRAFT_FIELDS[name]: name for name in DRAFT_FIELDS}):
            given = {key: value for key, value in given.items() if value is not None}
            spec = cls.of(config.drafter, **_merged(config.draft_options, given))
            spec.text()
        return spec

    def text(self) -> str:
        """Return it as `-d` takes it, defaults left out: equal texts draft alike. Raises ConfigError."""
        if self.built is not None:
            return self.name
        if self.parts:
            return "++".join(part.text() for part in self.parts)
        return options.format_spec(self.name, self._built_options())

    def smaller(self) -> DrafterSpec | None:
        """Return a spec whose options need less memory; None if there are none.

        Of several drafters, all that can be are made smaller; when none can, the first goes.
        """
        if self.built is not None:
            return None
        if self.parts:
            parts = [part.smaller() or part for part in self.parts]
            if parts == [*self.parts]:
                parts = parts[1:]
            if len(parts) == 1:
                return parts[0]
            return replace(self, parts=tuple(parts), is_auto=False)
        chosen = method_of(self.name).smaller(self._built_options())
        return None if chosen is None else DrafterSpec.of(options.format_spec(self.name, chosen))

    def unshared(self) -> DrafterSpec | None:
        """Return a spec whose options draft from a request's own tokens alone; None if there are none."""
        if self.built is not None:
            return None
        if self.parts:
            parts = [part.unshared() for part in self.parts]
            alone = tuple(part for part in parts if part is not None)
            return replace(self, parts=alone) if len(alone) == len(parts) else None
        unshared = method_of(self.name).unshared
        if unshared is None:
            return None
        return DrafterSpec.of(options.format_spec(self.name, unshared(self._built_options())))

    def for_target(self, target: Target) -> DrafterSpec:
        """Resolve `auto` for a target: the network that ships for it and a published drafter join the tables."""
        if not (self.is_auto and native.available()):
            return self
        *partners, tables = self.parts or (self,)
        known = registry.shipped("drafters")
        found = [
            name for name in AUTO_NETWORKS if name in known and method_of(name).bundled_for(target)
        ][:1]
        found = [published.spec for published in islice(published_for(target), 1)] + found
        given = [each.options.get("model") for each in partners]
        specs = [
            each for each in map(DrafterSpec.of, found) if each.options.get("model") not in given
        ]
        # What takes most memory comes first: `smaller` gives it up first.
        return DrafterSpec._joined([*partners, *specs, tables]) if specs else self

    @property
    def names_a_file(self) -> bool:
        """True where a model or a network was named, which may be another model's."""
        return any("model" in part.options for part in self.parts or (self,))

    def check(self, target: Target) -> None:
        """Raise LoadError or ConfigError for files that were made for another model; they are read as far as needed."""
        for part in self.parts or (self,):
            if "model" in part.options:
                method_of(part.name).check(part._built_options(), target)

    def build(self, target: Target, known: dict[str, Drafter] | None = None) -> Drafter:
        """Build the drafter, of parts that are `known` by their text where there are any.

        Raises ConfigError for unknown options, LoadError for a draft that cannot be read.
        """
        if self.built is not None:
            return self.built
        if (spec := self.for_target(target)) is not self:
            return spec.build(target, known)
        if self.parts:
            return united([part.build(target, known) for part in self.parts])
        drafter = None if known is None else known.get(self.text())
        if drafter is None:
            drafter = checked(find(self.name).build(self._options_for(target), target), self.name)
        if known is not None:
            known[self.text()] = drafter
        return drafter

    def _built_options(self) -> Any:
        try:
            return options.build(find(self.name).Options, self.options)
        except ConfigError as error:
            raise ConfigError(f"drafter '{self.name}': {error}", option=error.option) from error

    def _options_for(self, target: Target) -> Any:
        """Return the options, with the target's size of trees where they leave it open."""
        given = self._built_options()
        size = target.tree_size._asdict().items()
        return replace(
            given, **{name: most for name, most in size if getattr(given, name, most) is None}
        )

    @classmethod
    def _combined(cls, drafters: list[str], given: Mapping[str, object]) -> DrafterSpec:
        """Read each part by itself; an option given separately goes to the parts that have it."""
        parts = [cls.of(drafter) for drafter in drafters]
        names = [parse.option_names(part.name) if given else [] for part in parts]
        for key, value in given.items():
            parse.check_option(key, value, "++".join(drafters), [*chain.from_iterable(names)])
        specs = []
        for part, known in zip(parts, names, strict=True):
            extra = {key: value for key, value in given.items() if key in known}
            specs.append(cls(part.name, _merged(part.options, extra)))
        return cls._joined(specs)

    @classmethod
    def _with_partner(cls, given: Mapping[str, object]) -> DrafterSpec:
        """Add the model or network that is named to what `auto` is."""
        name = parse.implied(given)
        for key, value in given.items():
            parse.check_option(key, value, name, parse.option_names(name))
        if not native.available():
            return cls(name, given)
        return replace(cls._joined([cls(name, given), cls(parse.implied({}))]), is_auto=True)

    @classmethod
    def _joined(cls, parts: Sequence[DrafterSpec]) -> DrafterSpec:
        """Combine drafters, each with its defaults as one of several."""
        specs = [
            replace(
                part, options={**method_of(part.name).as_partner, **part.options}, is_auto=False
            )
            for part in parts
        ]
        return cls("++".join(part.name for part in specs), {}, tuple(specs))


def published_for(target: Target) -> Iterator[Published]:
    """Yield the published drafters on this disk that fit a target, the preferred one first; kernels run them."""
    if not runs_networks(target.model):
        return
    for published in for_model(target.identity):
        if (path := published.here()) is None:
            continue
        name, given = options.parse(published.spec)
        try:
            if name == "draft_model" and _cost(path, target) > MOST_COST:
                continue
            method_of(name).check(options.build(find(name).Options, given), target)
        except (ConfigError, LoadError) as error:
            _log.info("passed over: %s", error)
            continue
        yield published


def _cost(path: Path, target: Target) -> float:
    """Return what a step of a model in 4 bits reads, as a share of a pass of the target."""
    checkpoint = open_checkpoint(path)
    nbytes = weights_nbytes(checkpoint, "int4")
    return step_nbytes(read_config(checkpoint)[0], nbytes, COUNTED_SIZE) / pass_nbytes(target.model)


def _merged(options: Mapping[str, object], extra: Mapping[str, object]) -> dict[str, object]:
    """Join options. Raises ConfigError for one that is given twice with different values."""
    merged: dict[str, object] = {}
    for given in (options, extra):
        for key, value in given.items():
            name = key.replace("-", "_")
            if merged.setdefault(name, value) != value:
                raise ConfigError(f"option '{name}' is given twice: {merged[name]!r} and {value!r}")
    return merged
