"""Calls that must be made are written as the family's chat template writes them, and so that they are read back."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.calls import CallGrammar
from forerun.decoding.guidance import Grammars
from forerun.text.chat_template import ChatTemplate
from forerun.text.gguf_tokenizer import tokenizer_from_gguf
from forerun.text.parsing.calls import CLOSE, schemas_of
from forerun.text.parsing.families import HERMES_CALLS, WRITTEN
from forerun.text.parsing.forms import AnswerForm, form_of
from forerun.text.parsing.message import AnswerMessage
from forerun.text.tokenizer import Tokenizer
from forerun.weights.checkpoint import open_checkpoint

pytest.importorskip("llguidance", reason="grammars need llguidance")
jsonschema = pytest.importorskip("jsonschema", reason="arguments are checked by jsonschema")

TEMPLATE = """{%% for m in messages %%}<|im_start|>{{ m.role }}
{%% if m.tool_calls %%}%s{%% else %%}{{ m.content }}{%% endif %%}<|im_end|>
{%% endfor %%}{{ '<|im_start|>assistant\\n' if add_generation_prompt }}{{ tools and '' }}"""
EACH, PAIRS = "{% for c in m.tool_calls %}", "{% for k, v in c.function.arguments.items() %}"
NAME, ARGUMENTS, END = (
    "{{ c.function.name }}",
    "{{ c.function.arguments | tojson }}",
    "{% endfor %}",
)
VALUE = "{{ v if v is string else v | tojson }}"
COMMA, NL = "{{ ', ' if not loop.last }}", "{{ '\\n' }}"
M3 = "]<]minimax[>["
FAMILIES = {
    "hermes": f"{EACH}<tool_call>\n{{{{ c.function | tojson }}}}\n</tool_call>{{{{ '\\n' if not loop.last }}}}{END}",
    "apertus": f'<|tools_prefix|>[{EACH}{{"{NAME}": {ARGUMENTS}}}{COMMA}{END}]<|tools_suffix|>',
    "command": f'<|START_ACTION|>[\n{EACH}    {{"tool_call_id": "{{{{ loop.index0 }}}}", "tool_name": "{NAME}", '
    f'"parameters": {ARGUMENTS}}}{{{{ "," if not loop.last }}}}\n{END}]<|END_ACTION|>',
    "mistral": f"{EACH}[TOOL_CALLS]{NAME}[CALL_ID]{{{{ c.id }}}}[ARGS]{ARGUMENTS}{END}",
    "mistral list": f'[TOOL_CALLS][{EACH}{{"name": "{NAME}", "arguments": {ARGUMENTS}, "id": "{{{{ c.id }}}}"}}'
    f"{COMMA}{END}]",
    "mistral since": f"{EACH}[TOOL_CALLS]{NAME}[ARGS]{ARGUMENTS}{END}",
    "nemotron": f'<TOOLCALL>[{EACH}{{"name": "{NAME}", "arguments": {ARGUMENTS}}}{COMMA}{END}]</TOOLCALL>',
    "kimi": f"<|tool_calls_section_begin|>{EACH}<|tool_call_begin|>functions.{NAME}:{{{{ loop.index0 }}}}"
    f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>{END}<|tool_calls_section_end|>",
    "solar": f"<|tool_calls|>{EACH}<|tool_call:begin|>{{{{ c.id }}}}<|tool_call:name|>{NAME}<|tool_call:args|>"
    f"{ARGUMENTS}<|tool_call:end|>{END}",
    "llama": f'{{# <|python_tag|> #}}{EACH}{{{{ "" if loop.last else raise_exception("one call") }}}}'
    f'{{"name": "{NAME}", "parameters": {ARGUMENTS}}}{END}',
    "qwen coder": f"{EACH}<tool_call>\n<function={NAME}>\n{PAIRS}<parameter={{{{ k }}}}>\n{{{{ v | string if v is not "
    f"mapping else v | tojson }}}}\n</parameter>\n{END}</function>\n</tool_call>{{{{ '\\n' if not loop.last }}}}{END}",
    "glm": f"{EACH}<tool_call>{NAME}{PAIRS}<arg_key>{{{{ k }}}}</arg_key><arg_value>{VALUE}</arg_value>{END}"
    f"</tool_call>{END}",
    "glm 4.5": f"{{# {{function-name}}\n #}}{EACH}{{{{ '\\n' if not loop.first }}}}<tool_call>{NAME}\n{PAIRS}<arg_key>"
    f"{{{{ k }}}}</arg_key>\n<arg_value>{VALUE}</arg_value>\n{END}</tool_call>{END}",
    "seed": f"{EACH}{{{{ '\\n' if not loop.first }}}}<seed:tool_call>\n<function={NAME}>\n{PAIRS}<parameter="
    f"{{{{ k }}}}>{{{{ v }}}}</parameter>\n{END}</function>\n</seed:tool_call>{END}",
    "hunyuan": f"<tool_calls:opensource>{EACH}{NL}<tool_call:opensource>{NAME}<tool_sep:opensource>{PAIRS}{NL}"
    f"<arg_key:opensource>{{{{ k }}}}</arg_key:opensource>\n<arg_value:opensource>{VALUE}</arg_value:opensource>{END}"
    f"{NL}</tool_call:opensource>{END}{NL}</tool_calls:opensource>",
    "minimax": f'<minimax:tool_call>\n{EACH}<invoke name="{NAME}">\n{PAIRS}<parameter name="{{{{ k }}}}">{VALUE}'
    f"</parameter>\n{END}</invoke>\n{END}</minimax:tool_call>",
    "minimax 3": f'{M3}<tool_call>\n{EACH}{M3}<invoke name="{NAME}">{PAIRS}{M3}<{{{{ k }}}}>{VALUE}{M3}</{{{{ k }}}}>'
    f"{END}{M3}</invoke>\n{END}{M3}</tool_call>",
    "deepseek": f'<｜DSML｜tool_calls>\n{EACH}<｜DSML｜invoke name="{NAME}">\n{PAIRS}<｜DSML｜parameter '
    'name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
    f"{VALUE}</｜DSML｜parameter>\n{END}</｜DSML｜invoke>\n{END}</｜DSML｜tool_calls>",
    "kimi 3": f'<|open|>tools<|sep|>{EACH}<|open|>call tool="{NAME}" index="{{{{ loop.index }}}}"<|sep|>{PAIRS}'
    '<|open|>argument key="{{ k }}" type="{{ "string" if v is string else "boolean" if v is boolean else "number" }}"'
    f"<|sep|>{VALUE}<|close|>argument<|sep|>{END}<|close|>call<|sep|>{END}<|close|>tools<|sep|>{{# <|end_of_msg|> #}}",
    "gemma": f'{EACH}<|tool_call>call:{NAME}{{{{ "{{" }}}}{PAIRS}{{{{ k }}}}:'
    '{{ "<|\\"|>" ~ v ~ "<|\\"|>" if v is string else v | tojson }}{{ "," if not loop.last }}'
    f"{END}}}<tool_call|>{END}",
    "lfm": f'<|tool_call_start|>[{EACH}{NAME}({PAIRS}{{{{ k }}}}={{{{ "\'" ~ v ~ "\'" if v is string else v }}}}'
    f"{COMMA}{END}){COMMA}{END}]<|tool_call_end|>",
}
"""How templates of these families write calls."""
SPARE = {
    "<repo_name>": "<|open|>",
    "<reponame>": "<|close|>",
    "<file_sep>": "<|sep|>",
    "<filename>": M3,
    "<gh_stars>": '<|"|>',
    "<issue_start>": "[TOOL_CALLS]",
    "<issue_comment>": "<|tool_call_begin|>",
    "<issue_closed>": "<tool_call|>",
    "<jupyter_start>": "<|tool_call_start|>",
}
"""Control tokens of the default model, and what they are called here."""


def tool(name: str, required: list[str], **properties: object) -> dict[str, Any]:
    parameters: dict[str, object] = {"type": "object", "properties": properties}
    parameters["required"] = required
    parameters["additionalProperties"] = False
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


GET = tool(
    *("get_it", ["city", "days"]),
    city={"type": "string", "maxLength": 9},
    days={"type": "integer", "minimum": 1, "maximum": 9},
    unit={"enum": ["C", "F"]},
    wet={"type": "boolean"},
    code={"type": "string", "pattern": "^[a-z]/[0-9]{2}$"},
)
TOOLS = [GET, tool("stop", [])]
SCHEMAS = schemas_of(TOOLS)
Calls = list[tuple[str, dict[str, object]]]
CALLS: list[Calls] = [
    [("get_it", {"city": "José <b>", "days": 3})],
    [("get_it", {"city": "a, b: {c}", "days": 9, "unit": "F", "wet": True, "code": "x/12"})],
    [
        ("get_it", {"city": "a", "days": 1, "wet": False}),
        ("stop", {}),
        ("get_it", {"city": "", "days": 2}),
    ],
    [("stop", {}), ("stop", {})],
]
WRONG: Calls = [
    ("other", {}),
    ("get_it", {"city": "a"}),
    ("get_it", {"city": "a", "days": 10}),
    ("stop", {"city": "a"}),
]


@cache
def grammars_of(tokenizer: Tokenizer) -> Grammars:
    """Its vocabulary is read once."""
    return Grammars(tokenizer, tokenizer.vocab_size)


class Family:
    """What writes, allows and reads the calls of a family."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.template = tokenizer, ChatTemplate(source, "", "")
        self.form: AnswerForm = form_of(source)
        self.written = self.form.written

    def text(self, calls: Calls) -> str:
        """The text that the template writes."""
        functions = [{"name": name, "arguments": given} for name, given in calls]
        given = [{"id": "a1b2c3d4e", "type": "function", "function": one} for one in functions]
        asked = [{"role": "user", "content": "Hi."}]
        said = {"role": "assistant", "content": "", "tool_calls": given}
        whole = self.template.render([*asked, said], False, TOOLS)
        prompt = self.template.render(asked, True, TOOLS)
        assert whole.startswith(prompt)
        return whole.removeprefix(prompt).removesuffix("<|im_end|>\n")

    def start(self, tools: list[dict[str, Any]] = TOOLS) -> Any:
        """The state of the grammar before the first token."""
        marks = (self.form.calls.close, CLOSE)
        grammar = CallGrammar(
            self.written, schemas_of(tools), control=self.tokenizer.special_texts, marks=marks
        )
        lark = "\n".join(["start: calls", *grammar.rules(is_parallel=True)])
        return grammars_of(self.tokenizer).start(StructuredOutputsParams(grammar=lark))

    def allows(self, state: Any, text: str) -> bool:
        """Whether this is a whole answer."""
        for token in self.tokenizer.encode(text, bos=False):
            state = state.advance(token)
            if state is None:
                return False
        return any(map(state.allows, self.tokenizer.eos_ids))

    def read(self, text: str) -> list[tuple[str, Any]]:
        """The calls that the parser finds, beside which nothing may stand."""
        message = AnswerMessage.of(text, self.form.parser("", tools=SCHEMAS))
        assert not (message.content or "").strip()
        found = [call["function"] for call in message.tool_calls]
        return [(one["name"], json.loads(one["arguments"])) for one in found]


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    metadata: Any = open_checkpoint(default_model).metadata  # type: ignore[attr-defined]
    tokens = [SPARE.get(token, token) for token in metadata["tokenizer.ggml.tokens"]]
    return tokenizer_from_gguf({**metadata, "tokenizer.ggml.tokens": tokens})


@pytest.fixture(scope="module")
def letters(tokenizer: Tokenizer) -> np.ndarray:
    """The tokens of one byte."""
    sizes = (len(tokenizer.token_bytes(i) or b"") for i in range(tokenizer.vocab_size))
    return np.array([i for i, size in enumerate(sizes) if size == 1])


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Family:
    found = Family(TEMPLATE % FAMILIES[request.param], tokenizer)
    assert (found.written == HERMES_CALLS) == (request.param == "hermes")
    assert (found.written.between is None) == (request.param == "llama")
    return found


def test_what_the_template_writes_is_allowed_and_read(family: Family) -> None:
    state = family.start()
    for calls in CALLS:
        if family.written.between is not None or len(calls) == 1:
            text = family.text(calls)
            assert family.allows(state, text), text
            assert family.read(text) == calls


def test_other_calls_are_refused(family: Family) -> None:
    state = family.start()
    for call in WRONG:
        assert not family.allows(state, family.text([call]))


# In the fast run one walk.
@pytest.mark.parametrize("num_walks", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "source",
    [
        *(TEMPLATE % one for one in FAMILIES.values()),
        *(f"{sign}{calls.open}{calls.call}{calls.pair}" for sign, calls in WRITTEN.items()),
    ],
)
def test_whatever_is_allowed_is_read_as_valid_calls(
    source: str, num_walks: int, tokenizer: Tokenizer, letters: np.ndarray
) -> None:
    """A walk at random, which prefers what may end a text."""
    family = Family(source, tokenizer)
    random_ = random.Random(5)
    for _ in range(num_walks):
        state, tokens = family.start(), []
        while not any(map(state.allows, tokenizer.eos_ids)):
            allowed = state.allowed()
            short = letters[allowed[letters]].tolist()
            forced = state.forced()[:1]
            tokens.append(
                next(iter(forced), None)
                or random_.choice(short or np.flatnonzero(allowed).tolist())
            )
            state = state.advance(tokens[-1])
        text = tokenizer.decode(tokens, skip_special=False)
        found = family.read(text)
        assert found, text
        for name, arguments in found:
            jsonschema.validate(arguments, SCHEMAS[name])


def test_arguments_that_are_no_pairs_are_written_in_hermes_form(tokenizer: Tokenizer) -> None:
    family = Family(TEMPLATE % FAMILIES["qwen coder"], tokenizer)
    free = {"type": "object", "additionalProperties": {"type": "integer"}}
    tools = [{"type": "function", "function": {"name": "stop", "parameters": free}}]
    text = '<tool_call>\n{"name": "stop", "arguments": {"x": 1}}\n</tool_call>'
    assert family.allows(family.start(tools), text)
    assert family.read(text) == [("stop", {"x": 1})]


@pytest.mark.parametrize(
    "source",
    [
        *("{{ messages[0].content }}", "{{ tools and '' }}{{ messages[-1].content }}"),
        *(
            "{{ tools and '' }}{{ messages[-1] | tojson }}",
            "{{ raise_exception('No.') }}{{ tools }}",
        ),
    ],
)
def test_a_template_that_writes_no_calls_has_hermes_form(source: str, tokenizer: Tokenizer) -> None:
    assert Family(source, tokenizer).written == HERMES_CALLS
