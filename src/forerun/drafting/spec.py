"""Which drafter, with which options: one value, however it was spelled.

`suffix:min_token_prob=0.2` on our command line, `speculative_config={"method": "ngram", ...}` in vLLM's words,
`assistant_model=...` in Hugging Face's, `--model-draft` and `--draft-max` in llama.cpp's: all end as a `DrafterSpec`.
`suffix++draft_model:model=small.gguf` names two, which make one tree (`union`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forerun.core import options, registry, spellings
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, as_typed
from forerun.core.spellings import METHODS
from forerun.drafting import given as given_options
from forerun.drafting.base import Drafter, Target
from forerun.drafting.find import checked, find, is_file, method_of
from forerun.drafting.given import AUTO, Given
from forerun.drafting.given import AUTO_CHOICE as AUTO_CHOICE
from forerun.drafting.union import united

AUTO_NETWORK = "mlp_speculator"
"""The method whose network joins `auto` where one ships for the target."""
_NEXT_DRAFTER = re.compile(r",(?=\s*(?:[A-Za-z][\w+-]*|[^,:=]+\.py)\s*(?:[,:+]|$))")


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A drafter's name, or the path of its file, and the options that differ from its defaults.

    `parts` are the drafters of a union, in order.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[DrafterSpec, ...] = ()
    is_auto: bool = field(default=False, compare=False)
    """Nothing was asked for: what the model's profile chose takes its place."""
    typed: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What the options were called where they were given."""
    built: Drafter | None = None
    """A drafter that was given as an object; it serves one engine."""

    @classmethod
    def of(cls, drafter: str | Mapping[str, object] | Drafter, **given: object) -> DrafterSpec:
        """Read a name, `name:key=value,...` or a mapping with `method`, and options given beside it (None: not given).

        A name may be the path of a Python file; a drafter itself is taken as it is. A draft model without a method
        means `draft_model`, `prompt_lookup_num_tokens` without one means prompt lookup: nothing that is asked for is
        ignored. Raises ConfigError that quotes what was typed.
        """
        beside = {key: value for key, value in given.items() if value is not None}
        if not isinstance(drafter, str | Mapping):
            name = type(drafter).__name__
            if beside:
                raise ConfigError(f"a {name} is built: it takes no option '{next(iter(beside))}'")
            return cls(name, built=checked(drafter, name))
        if isinstance(drafter, str) and len(parts := _split(drafter)) > 1:
            return cls._combined(parts, beside)
        chosen: dict[str, object]
        if isinstance(drafter, str):
            method, texts = options.parse(drafter)
            chosen = {**texts}
        else:
            chosen = {key: value for key, value in drafter.items() if value is not None}
            method = AUTO
        method = given_options.method(method, chosen, beside)
        if len(parts := _split(method)) > 1:
            return cls._combined(parts, chosen | beside)
        name = given_options.drafter(method, {**chosen, **beside})
        shown = name if method == AUTO else method
        options_given = given_options.read(chosen, name, shown) | given_options.read(
            beside, name, shown
        )
        is_auto = method == AUTO and not options_given
        return cls._of_given(name, options_given, is_auto=is_auto)

    @classmethod
    def of_config(cls, config: EngineConfig) -> DrafterSpec:
        """The drafter a configuration asks for. Raises ConfigError for its options too, before anything is loaded."""
        given = {name: getattr(config, name) for name in spellings.BESIDE}
        spec = cls.of(config.drafter, **given, **config.draft_options)
        spec.text()
        return spec

    def text(self) -> str:
        """How `-d` spells it, defaults left out: equal texts draft alike. Raises ConfigError for unknown options."""
        if self.built is not None:
            return self.name
        if self.parts:
            return "++".join(part.text() for part in self.parts)
        return options.spell(self.name, self._built_options())

    def keeps(self) -> bool:
        """Whether it keeps what it learned for the next process, where that is asked for."""
        if self.parts:
            return any(part.keeps() for part in self.parts)
        return self.built is None and method_of(self.name).keeps

    def smaller(self) -> DrafterSpec | None:
        """Ask the method for options that need less memory; None: there are none.

        Of several, all that can be are made smaller.
        """
        if self.built is not None:
            return None
        if self.parts:
            parts = [part.smaller() or part for part in self.parts]
            if parts == [*self.parts]:
                return None
            return replace(self, parts=tuple(parts), is_auto=False)
        chosen = method_of(self.name).smaller(self._built_options())
        return None if chosen is None else DrafterSpec.of(options.spell(self.name, chosen))

    def beside(self, target: Target) -> DrafterSpec:
        """What `auto` means for a target: the network that ships for it joins the tables, if there is one."""
        has_network = self.is_auto and AUTO_NETWORK in registry.names("drafters")
        if not has_network or not method_of(AUTO_NETWORK).ships_for(target):
            return self
        return DrafterSpec.of(f"{AUTO_NETWORK}++{self.name}")

    def build(self, target: Target) -> Drafter:
        """The drafter. Raises ConfigError for options it does not have, LoadError for a draft that cannot be read."""
        if self.built is not None:
            return self.built
        if (spec := self.beside(target)) is not self:
            return spec.build(target)
        if self.parts:
            return united([part.build(target) for part in self.parts])
        chosen = self._built_options()
        try:
            return checked(find(self.name).build(chosen, target), self.name)
        except ConfigError as error:
            raise ConfigError(as_typed(str(error), self.typed)) from error

    def _built_options(self) -> Any:
        try:
            return options.build(find(self.name).Options, self.options)
        except ConfigError as error:
            message = as_typed(str(error), self.typed)
            raise ConfigError(f"drafter '{self.name}': {message}") from error

    @classmethod
    def _combined(cls, drafters: list[str], given: Mapping[str, object]) -> DrafterSpec:
        """Each part by itself; an option given beside them goes to the parts that have it."""
        parts = [cls.of(drafter) for drafter in drafters]
        names = [part.name for part in parts]
        for key, value in given.items():
            given_options.check(key, value, "++".join(drafters), names)
        specs = []
        for part in parts:
            own = {
                option: given_options.Given(part.typed[option], value)
                for option, value in part.options.items()
            }
            specs.append(cls._of_given(part.name, own | given_options.read(given, part.name)))
        return cls("++".join(names), {}, tuple(specs))

    @classmethod
    def _of_given(
        cls, name: str, given: Mapping[str, Given], *, is_auto: bool = False
    ) -> DrafterSpec:
        values = {option: one.value for option, one in given.items()}
        typed = {option: one.typed for option, one in given.items()}
        return cls(name, values, is_auto=is_auto, typed=typed)


def split_list(drafters: str) -> list[str]:
    """The drafters of a list: a comma ends one unless an option, `key=value` or a bare value, follows."""
    return [part for part in map(str.strip, _NEXT_DRAFTER.split(drafters)) if part]


def _split(drafter: str) -> list[str]:
    """Split `a++b` into its drafters; ++ is a sign only before a drafter's name: paths may have it.

    Raises ConfigError for a single + there.
    """
    if is_file(path := drafter.partition(":")[0]) and Path(path).expanduser().is_file():
        return [drafter]
    named = [spellings.method(word) or "" for word in drafter.split(",")]
    if all(named):  # llama.cpp's list; there too, methods without a model are asked first
        drafter = "++".join(sorted(dict.fromkeys(named), key=lambda name: name == "draft_model"))
    known = [re.escape(name) for name in (*registry.names("drafters"), *METHODS)]
    names = "|".join(known).replace("_", "[-_]").replace(r"\-", "[-_]")
    parts = re.split(rf"(\+\+?)(?=(?:{names}|[^:+,]+\.py)(?:[:+]|$))", drafter)
    if "+" in parts[1::2]:
        raise ConfigError(f"'{drafter}': ask both, for one tree, with {'++'.join(parts[::2])}")
    return parts[::2]
