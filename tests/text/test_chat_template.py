"""Chat templates: rendered as transformers renders them, sandboxed, and refused with one line."""

from __future__ import annotations

import pytest

from forerun.core.errors import RequestError
from forerun.text.chat_template import RESERVED, ChatTemplate

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "<b>1 < 2 & 'ü'</b>"},
]
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}\n"
        "    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "tokens": "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
    "tools": "{% if tools is not none %}tools{% endif %}{% if not documents %}none{% endif %}",
    "json": "{{ messages | tojson }} {{ messages[1] | tojson(indent=2) }}",
    "loops": "{% for m in messages %}{% if loop.index0 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}",
    "strings": "{{ messages[0].content.strip().split(' ')[0] | upper }}  \n  {% if true %}\n  x{% endif %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_templates_render_as_in_transformers(name: str, prompt: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        conversations=[MESSAGES],
        chat_template=TEMPLATES[name],
        add_generation_prompt=prompt,
        bos_token="<s>",
        eos_token="</s>",
    )
    ours = ChatTemplate(TEMPLATES[name], "<s>", "</s>").render(MESSAGES, prompt)
    assert ours == expected[0]
    assert ours


def test_the_clock_can_be_read() -> None:
    text = ChatTemplate("{{ strftime_now('%Y') }}", "", "").render(MESSAGES, True)
    assert text.isdecimal()
    assert len(text) == 4


FAILING = [
    ("{{ raise_exception('no system role') }}", "refuses these messages: no system role"),
    ("{{ messages[7].content }}", "cannot take these messages"),
    ("{{ messages[0].content + 1 }}", "cannot take these messages"),
    ("{{ ''.__class__.__mro__ }}", "cannot take these messages"),
    ("{{ messages.append(1) }}", "cannot take these messages"),
    ("{% for i in range(10**9) %}x{% endfor %}", "cannot take these messages"),
    ("{% if %}", "not valid"),
    ("{{ messages | shout }}", "not valid: .*shout"),
]


@pytest.mark.parametrize(("template", "reason"), FAILING)
def test_a_template_that_fails_is_a_request_error(template: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        ChatTemplate(template, "", "").render(MESSAGES, True)


@pytest.mark.parametrize("name", [*sorted(RESERVED), "range", "namespace", "raise_exception"])
def test_no_variable_takes_a_name_of_the_renderer(name: str) -> None:
    template = ChatTemplate("{{ messages }}{{ tools }}{{ mood }}{{ self }}", "", "")
    with pytest.raises(RequestError, match=rf"not '{name}' \(allowed: mood\)"):
        template.render(MESSAGES, True, variables={name: "x"})
    with pytest.raises(RequestError, match=r"unknown variable .* did you mean 'mood'"):
        template.render(MESSAGES, True, variables={"mod": "x"})


@pytest.mark.parametrize(
    ("messages", "reason"),
    [([], "conversation is empty"), ([{"role": "user"}], "message 0 has role")],
)
def test_malformed_messages_are_refused(messages: list[dict[str, str]], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        ChatTemplate("x", "", "").render(messages, True)
