"""What other servers' clients send: every field is ours under another name, a hint, a constraint, or strange."""

from __future__ import annotations

import pytest

from forerun.compat import ignored_fields, request_fields, requests
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
UNREAD = """
user metadata store prompt_cache_key verbosity truncation prediction_config provider transforms betas mcp_servers
cache_prompt n_keep id_slot speculative.n_min xtc_threshold dry_base mirostat_tau repeat_last_n vllm_xargs
kv_transfer_params return_logprob no_stop_trim bootstrap_host details adapter_hint num_ctx use_mmap keep_alive mode
instruction_template truncation_length do_sample temperature_last sampler_order max_length api_type safe_prompt
enable_search citations n_gpu_layers timeout draft_model dtype output_scores safetySettings"""
"""Left out: the answer is as good without."""
CONSTRAINTS = """typical_p typical tfs tfs_z top_a top_n_sigma top_nsigma nsigma mirostat mirostat_mode xtc_probability
dry_multiplier dynatemp_range dynamic_temperature epsilon_cutoff eta_cutoff smoothing_factor skew penalty_alpha
no_repeat_ngram_size encoder_repetition_penalty guidance_scale cfg_scale negative_prompt min_keep adaptive_target
num_beams use_beam_search length_penalty early_stopping best_of
bad_words_ids banned_tokens banned_strings bannedStrings custom_token_bans force_words_ids
sequence_bias logits_processors custom_logit_processor stop_regex suppress_tokens structural_tag response_prefix
response_schema responseSchema responseMimeType lora lora_path lora_request adapter_id images image_data video_data
functions function_call background modalities chat_template template post_sampling_probs documents input_ids
input_embeds prompt_embeds truncate_prompt_tokens diversity_penalty"""
"""Refused, but at the values that ask for nothing."""
HISTORY = """previous_response_id previousResponseId conversation thread context container prompt session_params history
chat_history"""
BODY = {"messages": [{"role": "user", "content": "Hi"}]}


def _read(fields, **options):
    with ignored_fields.collected(is_strict=False, **options) as found:
        body = ChatRequest.model_validate(BODY | fields)
    return body, found.names


def test_the_tables_are_disjoint_and_large():
    names = [*MEANT.split(), *UNREAD.split(), *CONSTRAINTS.split(), *HISTORY.split()]
    assert len(names) == len({*names}) >= 150


@pytest.mark.parametrize("name", MEANT.split())
def test_a_field_of_ours_is_read_under_another_name(name):
    plain = requests.snake(name, ChatRequest.model_fields)
    assert request_fields.RENAMED.get(plain, plain).split(".")[0] in ChatRequest.model_fields
    assert name not in _read({name: None})[1]


@pytest.mark.parametrize("name", UNREAD.split())
@pytest.mark.parametrize("value", [True, {"a": 1}])
def test_a_field_without_effect_is_left_out_and_named(name, value):
    body, ignored = _read({name: value})
    assert [*ignored] == [name]
    assert body.model_fields_set == {"messages"}


@pytest.mark.parametrize("name", [*CONSTRAINTS.split(), *HISTORY.split()])
def test_a_constraint_is_kept_or_refused_by_name(name):
    with pytest.raises(Exception, match=rf"{name}=.* is not possible here") as refused:
        _read({name: [0.5]})
    assert refused.value.param == name
    plain = requests.snake(name, ())
    for value in (request_fields.ONLY | request_fields.STATE)[plain][1]:
        given = float(value[2:]) if str(value).startswith((">=", "<=")) else value
        assert not _read({name: given})[1]


@pytest.mark.parametrize(
    ("given", "field", "meant"),
    [
        ({"max_tokens": 16.0}, "max_tokens", 16),
        ({"top_k": 40.0}, "top_k", 40),
        ({"num_predict": -2}, "max_tokens", 2**31 - 1),
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
    with ignored_fields.collected(is_strict=True):
        ChatRequest.model_validate(BODY | dict.fromkeys(request_fields.HINTS, 1))
        with pytest.raises(Exception, match="unknown field 'temprature': did you mean"):
            ChatRequest.model_validate(BODY | {"temprature": 1})
    with pytest.raises(RequestError):
        requests.read({"max_tokens": 1, "n_predict": 2})
