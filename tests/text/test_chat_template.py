"""Chat templates: rendered as transformers renders them, sandboxed, and refused with one line."""

from __future__ import annotations

import pytest

from forerun.core.errors import RequestError
from forerun.text.chat_template import RESERVED, ChatTemplate, with_tool_use
from forerun.text.messages import render_unfinished

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
    "json options": "{{ messages | tojson(ensure_ascii=True, indent=1, separators=(',', ': '), sort_keys=True) }}",
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


CONTINUED = {name: TEMPLATES[name] for name in ("chatml", "tokens", "generation")} | {
    "stripped": "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{{ eos_token }}{% endfor %}",
    "thought": "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content.split('</think>')[-1].lstrip() }}<end>{% endfor %}",
}


@pytest.mark.parametrize("name", CONTINUED)
@pytest.mark.parametrize("said", ["Well, it", "ü", "two\n\n", "<b>1 < 2 & 'ü'</b>"])
def test_a_last_message_that_goes_on_ends_as_in_transformers(name: str, said: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    last = {"role": "assistant", "content": said, "reasoning_content": "Hm."}
    messages = [*MESSAGES, last]
    expected, _ = render_jinja_template(
        conversations=[messages],
        chat_template=CONTINUED[name],
        continue_final_message=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    template = ChatTemplate(CONTINUED[name], "<s>", "</s>")
    ours = render_unfinished(messages, lambda turns: template.render(turns, False))
    assert ours.rstrip() == expected[0].rstrip()  # some of its versions strip
    assert ours.endswith(said)


def test_what_cannot_go_on_is_refused() -> None:
    with pytest.raises(RequestError, match="needs a last message of the assistant"):
        render_unfinished(MESSAGES, lambda turns: "")
    said = [*MESSAGES, {"role": "assistant", "content": "Well"}]
    with pytest.raises(RequestError, match="does not write the last message"):
        render_unfinished(said, lambda turns: "nothing")


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


TOOL = {"type": "function", "function": {"name": "f"}}
CALLS = [{"id": f"call_{i}", "function": {"name": "f", "arguments": {}}} for i in range(2)]
TALK = [
    {"role": "user", "content": "Do it."},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "call_1", "content": "b"},
    {"role": "tool", "tool_call_id": "call_0", "content": "a"},
]
PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
SAYS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls %}[{{ c.id }}]{% endfor %};{% endfor %}"
)


def rendered(source: str, messages: list[dict[str, object]], tools: list | None = None) -> str:
    return ChatTemplate(source, "", "").render(messages, True, tools)


def test_ids_have_nine_letters_where_the_template_refuses_others() -> None:
    strict = (
        "{% for m in messages %}{% for c in m.tool_calls %}{% if c.id|length != 9 %}"
        "{{ raise_exception('id') }}{% endif %}{% endfor %}"
        "{% if m.role == 'tool' and m.tool_call_id|length != 9 %}{{ raise_exception('id') }}{% endif %}"
        "{{ m.tool_call_id }}{% for c in m.tool_calls %}[{{ c.id }}]{% endfor %};{% endfor %}"
    )
    _, called, second, first, _ = rendered(strict, TALK).split(";")
    assert called == f"[{first}][{second}]"
    unnamed = [
        {name: value for name, value in turn.items() if name != "tool_call_id"}
        | (
            {"tool_calls": [{"function": call["function"]} for call in CALLS]}
            if "tool_calls" in turn
            else {}
        )
        for turn in TALK
    ]  # Ollama's clients send none
    _, called, first, second, _ = rendered(strict, unnamed).split(";")
    assert called == f"[{first}][{second}]"
    assert rendered(SAYS, TALK) == "user:Do it.;assistant:[call_0][call_1];tool:b;tool:a;"


def test_several_calls_are_one_by_one_where_the_template_takes_one() -> None:
    single = (
        "{% for m in messages %}{% if m.tool_calls|length > 1 %}"
        "{{ raise_exception('one') }}{% endif %}{% endfor %}"
    )
    found = rendered(single + SAYS.replace("[{{ c.id }}]", "!"), TALK)
    assert found == "user:Do it.;assistant:!;tool:a;assistant:!;tool:b;"


@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_the_user_says_what_the_system_cannot(tools: list | None) -> None:
    none = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    reads = "{% if tools %}{{ tools[0].function.name }}{% endif %}" if tools else ""
    said = [*MESSAGES, {"role": "system", "content": "Now."}]
    found = rendered(none + reads + PLAIN, said, tools)
    assert found == ("f" if tools else "") + f"user:Be brief.\n\n{MESSAGES[1]['content']}\n\nNow.;"
    later = "{% for m in messages[1:] %}{% if m.role == 'system' %}{{ raise_exception('late') }}{% endif %}{% endfor %}"
    found = rendered(later + PLAIN, said)
    assert found == f"system:Be brief.;user:{MESSAGES[1]['content']}\n\nNow.;"


def test_parameters_without_a_description_have_one_where_the_template_needs_it() -> None:
    source = "{% for t in tools %}{{ t.function.parameters.properties.x.description.upper() }}.{% endfor %}"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {}}}}}
    assert rendered(source, MESSAGES, [tool]) == "."


def test_tools_without_parameters_have_some_where_the_template_needs_them() -> None:
    source = "{% for t in tools %}{{ t.function.parameters.properties | length }}{% endfor %}"
    assert rendered(source, MESSAGES, [TOOL]) == "0"
    assert rendered("{{ tools | tojson }}", MESSAGES, [TOOL]) == str([TOOL]).replace("'", '"')


def test_calls_are_text_where_the_template_knows_no_such_turns() -> None:
    strict = (
        "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
        "{{ raise_exception('x') }}{% endif %}{% endfor %}"
    )
    found = rendered(strict + PLAIN, TALK)
    assert "<tool_call>" in found
    assert found.endswith("<tool_response>\nb\n</tool_response>;")


def test_a_template_for_tools_is_taken_where_there_are_some() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    default, tool_use = " D\n{{ messages[0].content }} \n", "\nT {{ tools | tojson }}\n"
    template = ChatTemplate(with_tool_use(default, tool_use), "", "")
    assert template.reads_tools
    for source, tools in ((default, None), (tool_use, [TOOL])):
        expected, _ = render_jinja_template([MESSAGES], tools=tools, chat_template=source)
        assert template.render(MESSAGES, True, tools) == expected[0]


CALLED = [
    {"role": "user", "content": "Go."},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "Fjord", "n": 1}'}}]},
    {"role": "tool", "tool_call_id": "c", "content": "7"},
]  # fmt: skip
TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ tools and '' }}"


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("<|tool_call|>", '<|tool_call|>[{"name": "look", "arguments": {"at": "Fjord", "n": 1}}]'),
        ("<|tool_call_start|>", "<|tool_call_start|>[look(at='Fjord', n=1)]<|tool_call_end|>"),
        ("<tool_call>", '<tool_call>\n{"name": "look", "arguments": {"at": "Fjord", "n": 1}}\n</tool_call>'),
        ("<tool_call><arg_key>", "<tool_call>look<arg_key>at</arg_key><arg_value>Fjord</arg_value>"
         "<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>"),
    ],
)  # fmt: skip
def test_calls_that_a_template_leaves_out_are_written_as_the_family_does(mark, text):
    template = ChatTemplate(f"{TURNS}{{# {mark} #}}", "", "")
    assert f"[assistant]{text}[tool]7" in template.render(CALLED, False)
    writes = ChatTemplate(TURNS.replace("{{ m.content }}", "{{ m.tool_calls }}"), "", "")
    assert "<tool_call>" not in writes.render(CALLED, False)


@pytest.mark.parametrize("read", ["thinking", "reasoning", "reasoning_content"])
@pytest.mark.parametrize("sent", ["thinking", "reasoning", "reasoning_content"])
def test_a_thought_goes_back_under_the_name_that_the_template_reads(read, sent):
    source = f"{{% for m in messages %}}{{{{ m.{read} }}}}{{{{ m.content }}}}{{% endfor %}}"
    said = {"role": "assistant", "content": "Yes.", sent: "Hm."}
    assert ChatTemplate(source, "", "").render([said], False) == "Hm.Yes."


def test_what_is_said_beside_a_thought_before_a_call_ends_the_thought():
    source = (
        "{% for m in messages %}{% if m.content and m.thinking %}{{ raise_exception('one') }}{% endif %}"
        "{{ m.thinking }}{{ m.content }}{{ m.tool_calls }}{% endfor %}{{ tools and '' }}"
    )
    turn = CALLED[1] | {"content": "Let me look.", "reasoning": "Hm."}
    text = ChatTemplate(source, "", "").render([CALLED[0], turn], False)
    assert "Hm.\n\nLet me look." in text


SYSTEM_PARTS = (
    "{% set s = messages[0].content[0].text if messages[0].role == 'system' else '' %}{{ s }}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
READ = {
    "a loop": "{% for m in messages %}{% for p in m.content %}{{ p.text | trim }}{% endfor %}{% endfor %}",
    "selected": "{% for m in messages %}{% for p in m.content | selectattr('type', 'equalto', 'text') %}"
    "{{ p['text'] }}{% endfor %}{% endfor %}",
    "the first": "{% for m in messages %}{{ m.content[0]['text'] }}{% endfor %}",
    "of the system": SYSTEM_PARTS,
    "added": "{% for m in messages %}{{ 'x' + m.content[0].text }}{% endfor %}",
}
WORDS = {"system": "Rules.", "user": "Why?", "assistant": "So.", "tool": "Found."}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("form", ["text", "parts"])
def test_words_arrive_in_the_form_that_the_template_reads(name: str, form: str) -> None:
    said = [
        {"role": role, "content": text if form == "text" else [{"type": "text", "text": text}]}
        for role, text in WORDS.items()
    ]
    text = rendered(READ[name], said)
    assert all(one in text for one in WORDS.values())


def test_what_a_template_leaves_out_goes_where_it_arrives_or_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    only_users = "{% for m in messages if m.role == 'user' %}{{ m.content }};{% endfor %}"
    assert rendered(only_users, MESSAGES) == f"Be brief.\n\n{MESSAGES[1]['content']};"
    template = ChatTemplate(only_users, "", "")
    assert template.content_forms == {
        "user": "text",
        "system": None,
        "assistant": None,
        "tool": None,
    }
    none = "{% for m in messages %}{{ m.role }}{{ m.content.words }}{% endfor %}"
    assert not caplog.records
    assert rendered(none, MESSAGES[1:])
    assert "leaves out what the user says" in caplog.text
