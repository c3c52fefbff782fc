"""The families of models: the marks around their calls and thoughts, and how they write calls."""

from __future__ import annotations

from forerun.text.parsing.calls import CLOSE, HERMES, NAMED_HEAD, OPEN, CallSyntax
from forerun.text.parsing.harmony import ARGUMENTS, CALL
from forerun.text.parsing.tags import M3_MARK
from forerun.text.parsing.thought import ReasoningTags
from forerun.text.parsing.written_calls import WrittenCalls

CALLS = (
    CallSyntax("[TOOL_CALLS]", "", NAMED_HEAD),  # Mistral
    CallSyntax("<|tool_call>", "<tool_call|>"),  # Gemma 4
    CallSyntax("<start_function_call>", "<end_function_call>"),  # FunctionGemma
    CallSyntax(
        *("<|tool_call_begin|>", "<|tool_call_end|>", NAMED_HEAD),  # Kimi K2
        silent=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    CallSyntax(
        *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", NAMED_HEAD),  # DeepSeek R1, V3, V3.1
        silent=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    CallSyntax(
        *("<｜DSML｜invoke", "</｜DSML｜invoke>", None, "｜DSML｜"),  # DeepSeek V3.2, V4
        silent=tuple(
            f"<{slash}｜DSML｜{name}>"
            for name in ("function_calls", "tool_calls")
            for slash in ("", "/")
        ),
    ),
    CallSyntax("<minimax:tool_call>", "</minimax:tool_call>"),  # MiniMax M2
    CallSyntax("<seed:tool_call>", "</seed:tool_call>"),  # Seed-OSS
    CallSyntax("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron
    CallSyntax("<|tools_prefix|>", "<|tools_suffix|>"),  # Apertus
    CallSyntax(
        *("<|START_ACTION|>", "<|END_ACTION|>"),  # Command
        silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    CallSyntax("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    CallSyntax("<function=", CLOSE, None),  # Qwen3-Coder, which forgets the mark before it
    CallSyntax("<function name=", "</function>", None),  # MiniCPM5
    CallSyntax("<|function_call|>", "", None),  # GigaChat 3.1
    CallSyntax(
        *("function call<|role_sep|>", "", None, "<|role_sep|>"),  # GigaChat 3
        silent=("<|message_sep|>",),
    ),
    CallSyntax(
        *("<|open|>call tool=", "<|close|>call<|sep|>", None, "<|end_of_msg|>"),  # Kimi K3
        silent=tuple(
            f"<|{what}|>{name}<|sep|>"
            for name in ("response", "tools", "message")
            for what in ("open", "close")
        ),
    ),
    CallSyntax(f"{M3_MARK}<tool_call>", f"{M3_MARK}</tool_call>", None, M3_MARK),  # MiniMax M3
    CallSyntax("Action:", "", None, r"Action:\n```json"),  # Command R+
    CallSyntax(
        *("<tool_call:opensource>", "</tool_call:opensource>", None, ":opensource"),  # Hunyuan 3
        silent=("<tool_calls:opensource>", "</tool_calls:opensource>"),
    ),
    CallSyntax(
        *("<|tool_call:begin|>", "<|tool_call:end|>", NAMED_HEAD),  # Solar
        silent=("<|begin|>assistant", "<|content|>", "<|tool_calls|>"),
    ),
    CallSyntax(
        *("to=", "</atem:function_calls>", None, "<atem:"),  # Muse: a message to the function
        silent=(" to=user<|message|>", "<|start|>assistant"),
    ),
    CallSyntax("<tool_calls>", "</tool_calls>"),  # MiniMax M1, Hunyuan, Jamba, Apriel
    CallSyntax("<function_calls>", "</function_calls>"),  # OLMo 3
    CallSyntax("<|tool_call|>", "<|/tool_call|>", sign="<|/tool_call|>"),  # Phi-4
    CallSyntax("<|tool_call|>", "", None),  # Granite 3
    CallSyntax("<|python_tag|>", "", None),  # Llama 3
    HERMES,  # beside which it is always read
)
"""The first whose sign stands in the template, else in the vocabulary, is a model's own."""
HERMES_CALLS = WrittenCalls(
    call=f'{OPEN}\n{{"name": "$name", "arguments": $args}}\n{CLOSE}', between="\n"
)
HARMONY_CALLS = WrittenCalls(open=CALL, call=f"$name{ARGUMENTS}$args", between=None)
WRITTEN = {
    # Mistral Small 3.2
    "[CALL_ID]": WrittenCalls(
        call="[TOOL_CALLS]$name[CALL_ID]$id[ARGS]$args",
    ),
    # Mistral since
    "[ARGS]": WrittenCalls(
        call="[TOOL_CALLS]$name[ARGS]$args",
    ),
    "[TOOL_CALLS]": WrittenCalls(
        open="[TOOL_CALLS][",
        call='{"name": "$name", "arguments": $args, "id": "$id"}',
        between=", ",
        close="]",
    ),
    "<|tool_call>": WrittenCalls(
        call="<|tool_call>call:$name{$args}<tool_call|>",
        pair='$key:$<|"|>value',
        comma=",",
    ),
    "<start_function_call>": WrittenCalls(
        call="<start_function_call>call:$name{$args}<end_function_call>",
        pair="$key:$<escape>value",
        comma=",",
    ),
    "<|tool_call_begin|>": WrittenCalls(
        open="<|tool_calls_section_begin|>",
        call="<|tool_call_begin|>functions.$name:$0<|tool_call_argument_begin|>$args<|tool_call_end|>",
        close="<|tool_calls_section_end|>",
    ),
    "<｜tool▁call▁begin｜>": WrittenCalls(
        open="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$args<｜tool▁call▁end｜>",
        close="<｜tool▁calls▁end｜>",
    ),
    "｜DSML｜": WrittenCalls(
        open="<｜DSML｜tool_calls>\n",
        call='<｜DSML｜invoke name="$name">\n$args</｜DSML｜invoke>\n',
        close="</｜DSML｜tool_calls>",
        pair='<｜DSML｜parameter name="$key" string="$is_text">$value</｜DSML｜parameter>\n',
    ),
    "<minimax:tool_call>": WrittenCalls(
        open="<minimax:tool_call>\n",
        call='<invoke name="$name">\n$args</invoke>\n',
        close="</minimax:tool_call>",
        pair='<parameter name="$key">$value</parameter>\n',
    ),
    "<seed:tool_call>": WrittenCalls(
        call="<seed:tool_call>\n<function=$name>\n$args</function>\n</seed:tool_call>",
        between="\n",
        pair="<parameter=$key>$word</parameter>\n",
    ),
    "<TOOLCALL>": WrittenCalls(
        open="<TOOLCALL>[",
        call='{"name": "$name", "arguments": $args}',
        between=", ",
        close="]</TOOLCALL>",
    ),
    "<|tools_prefix|>": WrittenCalls(
        open="<|tools_prefix|>[",
        call='{"$name": $args}',
        between=", ",
        close="]<|tools_suffix|>",
    ),
    "<|START_ACTION|>": WrittenCalls(
        open="<|START_ACTION|>[\n",
        call='    {"tool_call_id": "$0", "tool_name": "$name", "parameters": $args}',
        between=",\n",
        close="\n]<|END_ACTION|>",
    ),
    "<|tool_call_start|>": WrittenCalls(
        open="<|tool_call_start|>[",
        call="$name($args)",
        between=", ",
        close="]<|tool_call_end|>",
        pair="$key=$'word",
        comma=", ",
    ),
    "<function=": WrittenCalls(
        call="<tool_call>\n<function=$name>\n$args</function>\n</tool_call>",
        between="\n",
        pair="<parameter=$key>\n$word\n</parameter>\n",
    ),
    "<function name=": WrittenCalls(
        call='<function name="$name">$args</function>',
        pair='<param name="$key">$value</param>',
    ),
    # GigaChat 3.1
    "<|function_call|>": WrittenCalls(
        call='<|function_call|>{"name": "$name", "arguments": $args}',
        between=None,
    ),
    "<|end_of_msg|>": WrittenCalls(
        open="<|open|>tools<|sep|>",
        call='<|open|>call tool="$name" index="$1"<|sep|>$args<|close|>call<|sep|>',
        close="<|close|>tools<|sep|>",
        pair='<|open|>argument key="$key" type="$type"<|sep|>$value<|close|>argument<|sep|>',
    ),
    M3_MARK: WrittenCalls(
        open=f"{M3_MARK}<tool_call>\n",
        call=f'{M3_MARK}<invoke name="$name">$args{M3_MARK}</invoke>\n',
        close=f"{M3_MARK}</tool_call>",
        pair=f"{M3_MARK}<$key>$value{M3_MARK}</$key>",
    ),
    ":opensource": WrittenCalls(
        open="<tool_calls:opensource>",
        call="\n<tool_call:opensource>$name<tool_sep:opensource>$args\n</tool_call:opensource>",
        close="\n</tool_calls:opensource>",
        pair="\n<arg_key:opensource>$key</arg_key:opensource>\n<arg_value:opensource>$value</arg_value:opensource>",
    ),
    "<|tool_call:begin|>": WrittenCalls(
        open="<|tool_calls|>",
        call="<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>$args<|tool_call:end|>",
    ),
    "<tool_calls>": WrittenCalls(
        open="<tool_calls>[",
        call='{"name": "$name", "arguments": $args}',
        between=", ",
        close="]</tool_calls>",
    ),
    # Llama 3
    "<|python_tag|>": WrittenCalls(
        call='{"name": "$name", "parameters": $args}',
        between=None,
    ),
    "{function-name}\n": WrittenCalls(
        call="<tool_call>$name\n$args</tool_call>",
        between="\n",
        pair="<arg_key>$key</arg_key>\n<arg_value>$value</arg_value>\n",
    ),
    # GLM 4.7
    "<arg_key>": WrittenCalls(
        call="<tool_call>$name$args</tool_call>",
        pair="<arg_key>$key</arg_key><arg_value>$value</arg_value>",
    ),
}
"""How calls are written that must be made, by what a template has in it; the first that it has."""
THOUGHTS = (
    ReasoningTags("[THINK]", "[/THINK]"),  # Mistral
    ReasoningTags("<|channel>thought", "<channel|>"),  # Gemma 4
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ReasoningTags("<mm:think>", "</mm:think>"),  # MiniMax M3
    ReasoningTags(
        "<|open|>think<|sep|>", "<|close|>think<|sep|>", sign="<|end_of_msg|>"
    ),  # Kimi K3
    ReasoningTags("<think:opensource>", "</think:opensource>", sign=":opensource"),  # Hunyuan 3
    ReasoningTags("<|think|>", "<|end|>", sign="<|tool_call:begin|>"),  # Solar
    ReasoningTags("to=self<|message|>", "<|eom|>", sign="<atem:"),  # Muse
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("Here is my thought process:", "Here is my response:"),  # Granite 3
)
