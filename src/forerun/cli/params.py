"""What the user asks of an answer: parameters for a model of this machine or a server, and the answer's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.compat.engine import note
from forerun.core.errors import ConfigError, RequestError
from forerun.core.options import flags_of, option
from forerun.core.params import SamplingParams
from forerun.core.paths import expanded
from forerun.core.structured import StructuredOutputsParams
from forerun.system.files import read_text
from forerun.text.generation import FILTERS, SETTINGS

if TYPE_CHECKING:
    from forerun.llm import LLM

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Params:
    """What the user gave of a request's parameters; called with a model: its own, changed by them."""

    chosen: Mapping[str, Any]

    def __call__(self, llm: LLM) -> SamplingParams:
        """Complete the parameters for a model, with a note for each that has no effect there."""
        params = replace(llm.default_params(), **self.chosen)
        if params.is_greedy and "temperature" not in self.chosen:
            for name in (name for name in FILTERS if name in self.chosen):
                why = "this model is decoded greedily unless --temperature is given"
                note(f"--{name.replace('_', '-')}", self.chosen[name], why)
        return params

    def body(self) -> dict[str, object]:
        """Write the fields of a request to a server, which decides what is not given."""
        neutral = SamplingParams()
        kept = (*SETTINGS, "max_tokens")
        return {
            name: value
            for name, value in self.chosen.items()
            if value is not None and (name in kept or value != getattr(neutral, name))
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What an answer must look like."""

    json_schema: str | None = option(None, "-j", "-jf", "--json-schema-file", metavar="FILE")
    """Answer in JSON of this schema: a file, or the schema itself."""
    grammar: str | None = option(None, metavar="GBNF")
    """Constrain the answer to this grammar: GBNF, EBNF or Lark."""
    grammar_file: str | None = option(None, metavar="FILE")
    """Read the grammar from a file."""

    def read(self) -> StructuredOutputsParams | None:
        """Read the form that is asked for. Raises ConfigError for two of them, and for a wrong schema."""
        each = flags_of(Form).items()
        given = [flags[0] for name, flags in each if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"give {' or '.join(given)}, not both")
        if self.grammar_file is not None:
            return StructuredOutputsParams(grammar=read_text(Path(self.grammar_file)))
        if self.grammar is not None:
            return StructuredOutputsParams(grammar=self.grammar)
        if (schema := self.json_schema) is None:
            return None
        is_text = schema.lstrip().startswith("{")
        try:
            return StructuredOutputsParams(json=schema if is_text else read_text(Path(schema)))
        except RequestError as error:
            raise ConfigError(f"--json-schema {error}") from error


def read_template(given: str | None) -> str | None:
    """Read a chat template. Raises ConfigError for what is neither a file nor Jinja."""
    if given is None or given == "chatml":
        return given and CHATML
    if "{" in given or " " in given:
        return given
    if not (path := expanded(given)).exists():
        what = "--chat-template must be a file of Jinja, its text, or chatml"
        raise ConfigError(f"{what}; no such file: {given}")
    return read_text(path)
