"""What the fields of requests are called by OpenAI's, Anthropic's, vLLM's, llama.cpp's and other servers' clients."""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("max_completion_tokens", "max_output_tokens", "max_new_tokens", "maximum_tokens"),
            *("n_predict", "num_predict", "max_tokens_to_sample", "max_gen_tokens"),
        ),
        "max_tokens",
    ),
    **dict.fromkeys(
        (
            *("stop_sequences", "stop_sequence", "stop_strings", "stop_words", "stopping_strings"),
            *("stop_tokens", "stops"),
        ),
        "stop",
    ),
    **dict.fromkeys(("min_new_tokens", "min_length", "min_completion_tokens"), "min_tokens"),
    **dict.fromkeys(("repeat_penalty", "rep_pen"), "repetition_penalty"),
    **dict.fromkeys(("random_seed", "sampler_seed"), "seed"),
    **dict.fromkeys(
        ("thinking_budget_tokens", "thinking_token_budget", "reasoning_budget"), "thinking_budget"
    ),
    **dict.fromkeys(("n_cmpl", "num_return_sequences", "num_completions"), "n"),
    "ban_eos_token": "ignore_eos",
    "speculative.n_max": "max_draft",
    "guided_choice": "structured_outputs.choice",
    **dict.fromkeys(("guided_json", "json_schema"), "structured_outputs.json"),
    **dict.fromkeys(("guided_regex", "regex", "regex_pattern"), "structured_outputs.regex"),
    **dict.fromkeys(
        ("guided_grammar", "grammar", "grammar_string", "ebnf"), "structured_outputs.grammar"
    ),
}
"""Our field, or a part of one that is an object."""

_HINTS = """
user safety_identifier client_metadata metadata include store context_management service_tier verbosity
prompt_cache_key prompt_cache_retention prompt_cache_options truncation web_search_options audio
max_tool_calls cache_control inference_geo speed mcp_servers betas anthropic_beta anthropic_version
request_id rid cache_salt include_reasoning separate_reasoning return_tokens_as_token_ids
spaces_between_special_tokens mm_processor_kwargs
id_slot cache_prompt n_cache_reuse n_keep n_discard n_indent t_max_prompt_ms response_fields
repeat_last_n penalize_nl backend_sampling dynatemp_exponent xtc_threshold dry_allowed_length dry_base
dry_penalty_last_n dry_sequence_breakers mirostat_eta mirostat_tau adaptive_decay speculative.n_min
speculative.p_min speculative.type reasoning_control keep_alive num_ctx num_keep num_batch num_thread num_gpu
main_gpu use_mmap use_mlock numa low_vram penalize_newline user_id session_id timeout timeout_ms time
add_bos_token api_server api_type legacy_api do_sample max_tokens_second penalty_last_n rep_pen_range rep_pen_slope
repetition_decay repetition_penalty_range sampler_order sampler_priority smoothing_curve speculative_ngram
temperature_last trim_stop truncation_length"""
HINTS = frozenset(_HINTS.split())
"""Hints that clients of those servers send by themselves: left out as any unknown field, and allowed where a request
is read strictly."""

_NOT_SUPPORTED = "not supported: leave it out"
_FILTER = "the only filters are top_k, top_p and min_p"
_NO_STATE = "nothing is stored"
_TEXT_ONLY = "images, audio and video are not supported"
_DEPRECATED = "deprecated: use tools and tool_choice"
_BEAM_SEARCH = "beam search is not supported"
_LORA = "LoRA adapters are not supported"
_NONE: tuple[object, ...] = ("", [], {}, False)
"""What asks for nothing where a list, an object or a text would ask for something."""

STATE: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "previous_response_id": (f"{_NO_STATE}: send the items so far as input", ("",)),
    "conversation": (f"{_NO_STATE}: send the items so far as input", ("",)),
    "thread": (f"{_NO_STATE}: send all messages so far", ()),
    "context": (f"{_NO_STATE}: send all messages so far to /api/chat", ([], "")),
    "container": (f"{_NO_STATE}, and no code is run", ()),
    "prompt": (f"{_NO_STATE}: send its text", ()),
    "session_params": (f"{_NO_STATE}: send all messages so far", ({},)),
    "history": (f"{_NO_STATE}: send all messages so far", _NONE),
    "chat_history": (f"{_NO_STATE}: send all messages so far", _NONE),
}
"""Fields of any dialect that stand for what is not in the request, where a route has no field of that name.

Without what they stand for the answer would be one to another question. As in `ONLY`.
"""

ONLY: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "background": ("there are no background requests", (False,)),
    "modalities": ("output is text only", (["text"], [])),
    "chat_template": ("the chat template is an option of the server", ("",)),
    "template": ("the chat template is an option of the server", ("",)),
    "functions": (_DEPRECATED, ([],)),
    "function_call": (_DEPRECATED, ("none", "auto")),
    "best_of": ("all n completions are returned: use n", (1, 0)),
    "early_stopping": (_BEAM_SEARCH, (False,)),
    "length_penalty": (_BEAM_SEARCH, (1, 0)),
    "use_beam_search": (_BEAM_SEARCH, (False,)),
    "beam_search": (_BEAM_SEARCH, (False,)),
    **dict.fromkeys(("num_beams", "beam_width"), (_BEAM_SEARCH, (1, 0))),
    **dict.fromkeys(
        (
            *("dry_multiplier", "dynatemp_range", "mirostat", "mirostat_mode", "xtc_probability"),
            *("top_a", "epsilon_cutoff", "eta_cutoff", "smoothing_factor", "penalty_alpha", "skew"),
            *("top_n_sigma", "top_nsigma", "nsigma", "no_repeat_ngram_size", "dynatemp"),
            *("dynamic_temperature", "diversity_penalty"),
        ),
        (_FILTER, ("<=0", False)),
    ),
    **dict.fromkeys(("typical_p", "typical", "tfs", "tfs_z"), (_FILTER, (">=1",))),
    "min_keep": (_FILTER, ("<=1",)),
    "adaptive_target": (_FILTER, ("<=-0.001",)),
    "encoder_repetition_penalty": (_FILTER, (1,)),
    **dict.fromkeys(
        ("guidance_scale", "cfg_scale"), ("classifier-free guidance is not supported", (1, 0))
    ),
    "negative_prompt": ("classifier-free guidance is not supported", ("",)),
    "post_sampling_probs": ("log-probabilities are those of the raw logits", (False,)),
    "verbose": ("verbosity is an option of the server", (False,)),
    **dict.fromkeys(("images", "image_data", "image_urls"), (_TEXT_ONLY, _NONE)),
    **dict.fromkeys(("video_data", "audio_data", "videos", "audios"), (_TEXT_ONLY, _NONE)),
    **dict.fromkeys(
        (
            *("allowed_tokens", "bad_words_ids", "banned_tokens"),
            *("banned_strings", "banned_phrases", "banned_words", "custom_token_bans"),
            *("force_words_ids", "sequence_bias", "logit_bias_exp"),
            *("logits_processors", "custom_logit_processor", "logits_processor_args", "stop_regex"),
            *("suppress_tokens", "begin_suppress_tokens", "structural_tag"),
            *("guided_whitespace_pattern", "response_prefix"),
        ),
        (_NOT_SUPPORTED, _NONE),
    ),
    **dict.fromkeys(
        ("lora", "loras", "lora_path", "lora_adapter", "lora_request", "adapter_id", "adapter"),
        (_LORA, _NONE),
    ),
    **dict.fromkeys(
        ("response_schema", "output_schema", "schema", "response_mime_type"),
        ("use response_format", ("", {}, "text/plain")),
    ),
    **dict.fromkeys(
        ("documents", "input_ids", "input_embeds", "prompt_embeds", "file_ids"),
        ("not supported: put its text into the conversation", _NONE),
    ),
    "truncate_prompt_tokens": ("prompts are not truncated", ("<=-1",)),
}
"""Why a field cannot be had, and the values that ask for nothing; `<=0` is any number that is."""

NAMES = frozenset((*RENAMED, *HINTS, *STATE, *ONLY))
"""All names that are known of others."""
NEWER = {"max_tokens": "max_completion_tokens"}
"""By field: the newer of two names that proxies send both, which holds, as with OpenAI, vLLM and llama.cpp."""
EMPTY: Mapping[str, tuple[object, ...]] = {
    "logit_bias": ([], {}, ""),
    "stop": ("", [""]),
    **{
        name: ("",)
        for name, ours in RENAMED.items()
        if ours.startswith("structured_outputs") and not ours.endswith("choice")
    },
}
"""Values of our fields that are the same as none."""
