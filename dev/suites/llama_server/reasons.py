"""Why a test of the suite does not pass: written down by hand, after each was looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping

NOT_BUILT: Mapping[str, str] = {
    "compat_gcp": "not built: Google's form of prediction requests",
    "kv_keep_only_active": "not built: a copy of idle slots in host memory; prefixes stay in the cache",
    "lora": "not built: adapters",
    "mcp_servers": "not built: running tools in the server",
    "proxy": "not built: a proxy for the page",
    "sleep": "not built: unloading an idle model",
    "slot_save": "not built: slots on disk",
    "stream": "not built: streams that can be resumed",
    "tools_builtin": "not built: running tools in the server",
    "vision_api": "not built: images",
}
"""Files that are about one feature, which is not there."""

_FIRST = "otherwise on purpose: a stream's first chunk has OpenAI's content '', with the first text, not null"
_BY_NAME: tuple[tuple[str, str], ...] = (
    (
        r"test_chat_completion_stream|timings_per_token|test_logprobs_stream|tool_call_fast.*STREAMED",
        _FIRST,
    ),
    (
        r"test_chat_template\[|test_chat_template$",
        "not built: llama.cpp's names of templates, prompts in answers",
    ),
    (r"test_apply_chat_template|mutual_exclusion", "not built: llama.cpp's names of templates"),
    (
        r"assistant_prefill|continue_final",
        "not built: answers that go on with a message; prompts in answers",
    ),
    (r"test_verbose_debug", "otherwise on purpose: no prompt is sent back"),
    (
        r"test_invalid_chat_completion_req\[messages7",
        "the template says what is allowed; ours takes two answers in a row",
    ),
    (r"return_progress|prompt_progress|llama_telemetry", "not built: progress of prompts"),
    (r"test_n_probs_post", "not built: probabilities after the samplers; refused in words"),
    (
        r"test_ctx_shift_enabled|test_with_ctx_shift",
        "not built: shifting the context; refused in words",
    ),
    (r"test_synth", "not built: made-up acceptance, which is for tests of llama.cpp"),
    (
        r"pooling_none|usage_multiple|short_prompt",
        "other tokens: the suite's model has another tokenizer",
    ),
    (
        r"error_prompt_too_long",
        "otherwise on purpose: one sentence for all prompts that are too long",
    ),
    (r"test_metrics_disabled", "otherwise on purpose: /metrics is always there"),
    (
        r"timings_are_finite",
        "otherwise on purpose: timings name the drafter, which is not a number",
    ),
    (r"test_metrics_", "otherwise on purpose: metrics have vLLM's names"),
    (
        r"cors_options|cors_origins",
        "otherwise on purpose: pages of elsewhere are refused unless allowed, also before they ask",
    ),
    (r"static_assets", "otherwise on purpose: the page is three files, no application"),
    (r"cors_proxy", "not built: a proxy for the page"),
    (r"local_media|vision|with_image", "not built: images"),
    (
        r"test_date_inside",
        "otherwise on purpose: templates see what transformers gives them, which is not a date",
    ),
    (
        r"test_router",
        "not built: llama.cpp's routes that load and unload models (several models themselves are served)",
    ),
    (
        r"test_with_and_without_draft",
        "its last part: made-up acceptance, which is for tests of llama.cpp",
    ),
    (
        r"test_rerank(_tei_format)?$",
        "which document is the best: the suite's model ranks, ours is made at random",
    ),
    (r"test_slot_ctx", "other tokens: the suite's model has another tokenizer"),
    (r"anthropic_messages_basic", "otherwise on purpose: figures beside Anthropic's fields"),
    (
        r"anthropic_empty_messages",
        "otherwise on purpose: an empty conversation is refused, as by Anthropic",
    ),
    (r"multiple_addresses", "not built: several addresses"),
    (r"aliases_and_tags", "not built: tags of models"),
    (
        r"test_reasoning|thinking",
        "not built: a template's thinking is switched by chat_template_kwargs alone",
    ),
)
_BY_TEXT: tuple[tuple[str, str], ...] = (
    (r"gaierror|Name or service", "an address of the internet"),
    (r"FileNotFound|no such file", "a file of a hub"),
)


def reason(test: str, text: str) -> str:
    """The reason of a miss, from the test's name or what it said; `open` where none is known."""
    for pattern, why in _BY_NAME:
        if re.search(pattern, test):
            return why
    for pattern, why in _BY_TEXT:
        if re.search(pattern, text):
            return why
    return "open"
