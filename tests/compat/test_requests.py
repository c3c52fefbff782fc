"""What other servers' clients send: every field is ours under another name, a hint, a constraint, or strange."""

from __future__ import annotations

import pytest

from forerun.compat import requests
from forerun.core.errors import RequestError
from forerun.core.params import MAX_SEED, SamplingParams
from forerun.server.api.openai import ChatRequest

MEANT = """
max_completion_tokens max_output_tokens max_new_tokens n_predict num_predict maxTokens max-tokens maxNewTokens
maxOutputTokens stop_sequences stopSequences stop_sequence stop_strings stopping_strings min_new_tokens min_length
topK topP minP repeat_penalty rep_pen repeatPenalty random_seed sampler_seed n_cmpl num_return_sequences
ban_eos_token guided_json guided_regex guided_choice guided_grammar json_schema jsonSchema regex regex_pattern ebnf
grammar grammar_string presencePenalty frequencyPenalty logitBias Temperature thinking_budget_tokens
reasoning_budget toolChoice responseFormat speculative.n_max"""
"""Ours, under another name."""
HINTS = """
user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention verbosity truncation
include context_management web_search_options prediction_config max_tool_calls
provider models route transforms plugins session_id trace inference_geo speed betas mcp_servers anthropic_version
cache_prompt n_keep n_discard n_cache_reuse id_slot n_indent time t_max_prompt_ms return_progress_ms speculative.n_min
speculative.p_min xtc_threshold dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers mirostat_tau
mirostat_eta dynatemp_exponent repeat_last_n penalty_last_n backend_sampling adaptive_decay
spaces_between_special_tokens priority cache_salt request_id mm_processor_kwargs include_reasoning
return_tokens_as_token_ids chat_template_content_format vllm_xargs kv_transfer_params
return_logprob top_logprobs_num logprob_start_len return_text_in_logprobs return_hidden_states separate_reasoning
stream_reasoning no_stop_trim rid bootstrap_host bootstrap_port bootstrap_room data_parallel_rank extra_key
custom_params
details decoder_input_details return_full_text top_n_tokens adapter_hint
num_ctx num_batch num_gpu num_thread num_threads main_gpu use_mmap use_mlock low_vram numa num_gqa f16_kv vocab_only
logits_all num_keep penalize_newline keep_alive
mode character instruction_template name1 name2 user_bio context_template greeting truncation_length add_bos_token
auto_max_new_tokens max_tokens_second do_sample temperature_last sampler_priority dynatemp_low dynatemp_high
smoothing_curve repetition_penalty_range presence_penalty_range frequency_penalty_range
temp_exponent min_temp max_temp repetition_decay penalty_range speculative_ngram add_bos_if_needed
rep_pen_range rep_pen_slope sampler_order use_default_badwordsids memory quiet max_context_length max_length trim_stop
api_type api_server legacy_api
safe_prompt prompt_mode incremental_output result_format enable_search search_options search_parameters
search_domain_filter search_mode return_images return_related_questions citations n_ctx n_batch n_threads n_gpu_layers
ttl timeout draft_model dtype batch_size echo_last context_length_exceeded_behavior perf_metrics_in_response
raw_output prompt_truncate_len prompt_cache_max_len cached_content output_scores return_dict_in_generate
safetySettings cachedContent"""
"""Left out: the answer is as good without."""
CONSTRAINTS = """typical_p typical tfs tfs_z top_a top_n_sigma top_nsigma nsigma mirostat mirostat_mode xtc_probability
dry_multiplier dynatemp_range dynamic_temperature epsilon_cutoff eta_cutoff smoothing_factor skew penalty_alpha
no_repeat_ngram_size encoder_repetition_penalty guidance_scale cfg_scale negative_prompt min_keep adaptive_target
num_beams use_beam_search length_penalty early_stopping best_of
allowed_token_ids bad_words bad_words_ids banned_tokens banned_strings bannedStrings custom_token_bans force_words_ids
sequence_bias logits_processors custom_logit_processor stop_regex suppress_tokens structural_tag response_prefix
response_schema responseSchema responseMimeType lora lora_path lora_request adapter_id images image_data video_data
functions function_call background modalities chat_template template post_sampling_probs documents input_ids
input_embeds prompt_embeds truncate_prompt_tokens diversity_penalty"""
"""Refused, but at the values that ask for nothing."""
HISTORY = """previous_response_id previousResponseId conversation thread context container prompt session_params history
chat_history"""
STRANGE = """prediction_config return_progress_ms vllm_xargs kv_transfer_params adapter_hint speculative_ngram
max_length"""
"""Of the hints: known to nobody here, left out all the same."""
BODY = {"messages": [{"role": "user", "content": "Hi"}]}


def _read(fields, **options):
    with requests.collected(is_strict=False, **options) as found:
        body = ChatRequest.model_validate(BODY | fields)
    return body, found.names


def test_the_tables_are_disjoint_and_large():
    names = [*MEANT.split(), *HINTS.split(), *CONSTRAINTS.split(), *HISTORY.split()]
    assert len(names) == len({*names}) >= 250


@pytest.mark.parametrize("name", MEANT.split())
def test_a_field_of_ours_is_read_under_another_name(name):
    plain = requests.snake(name, ChatRequest.model_fields)
    assert requests.RENAMED.get(plain, plain).split(".")[0] in ChatRequest.model_fields
    assert name not in _read({name: None})[1]


@pytest.mark.parametrize("name", HINTS.split())
@pytest.mark.parametrize("value", [True, 3, "x", {"a": 1}])
def test_a_hint_is_left_out_and_named(name, value):
    body, ignored = _read({name: value})
    assert [*ignored] == [name]
    assert body.model_fields_set == {"messages"}
    if name not in STRANGE.split():
        assert not ignored[name]
        assert name in requests.NAMES or requests.snake(name, ()) in requests.NAMES


@pytest.mark.parametrize("name", [*CONSTRAINTS.split(), *HISTORY.split()])
def test_a_constraint_is_kept_or_refused_by_name(name):
    with pytest.raises(Exception, match=rf"{name}=.* is not possible here") as refused:
        _read({name: [0.5]})
    assert refused.value.param == name
    plain = requests.snake(name, ())
    for value in (requests.ONLY | requests.STATE)[plain][1]:
        given = float(value[2:]) if str(value).startswith((">=", "<=")) else value
        assert not _read({name: given})[1]


@pytest.mark.parametrize(
    ("given", "field", "meant"),
    [
        ({"max_tokens": 16.0}, "max_tokens", 16),
        ({"top_k": 40.0}, "top_k", 40),
        ({"num_predict": -2}, "max_tokens", None),
        ({"seed": 2**64 - 1}, "seed", MAX_SEED),
        ({"seed": -5}, "seed", MAX_SEED - 4),
        ({"seed": -1}, "seed", None),
        ({"stop": ["", "a"]}, "stop", ("a",)),
        ({"stop": ""}, "stop", ()),
        ({"logit_bias": []}, "logit_bias", {}),
        ({"grammar": "", "guided_json": None}, "structured_outputs", None),
        ({"top_n_sigma": -0.01, "tfs_z": 1.5, "xtc_probability": 0.0}, "top_p", 1.0),
        ({"n_predict": 5, "max_tokens": 5.0}, "max_tokens", 5),
    ],
)
def test_values_as_people_send_them(given, field, meant):
    body, _ = _read(given)
    assert getattr(body._sampling(SamplingParams()), field) == meant


def test_no_probability_but_the_largest_is_left_by_0():
    body, _ = _read({"top_p": 0})
    assert 0 < body._sampling(SamplingParams()).top_p < 1e-6


def test_a_strict_server_refuses_strange_fields_alone():
    with requests.collected(is_strict=True):
        ChatRequest.model_validate(BODY | {"user": "a", "mode": "b"})
        with pytest.raises(Exception, match="unknown field 'temprature': did you mean"):
            ChatRequest.model_validate(BODY | {"temprature": 1})
    with pytest.raises(RequestError):
        requests.read({"max_tokens": 1, "n_predict": 2})
