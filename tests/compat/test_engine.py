"""The tables of other engines' names: every row leads somewhere; a note, a meaning, or an error in one line."""

from __future__ import annotations

import ast
import dataclasses
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forerun.compat import engine as spellings
from forerun.compat.engine import DRAFTING, KEYWORDS, METHODS
from forerun.compat.keywords import Keywords
from forerun.core import registry
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, given_as
from forerun.drafters.base.parse import option_names
from forerun.drafters.base.spec import DrafterSpec

STRICT = {name: one.values for name, one in KEYWORDS.items() if one.values}
STRICT |= {
    name: field.metadata["values"]
    for field in dataclasses.fields(EngineConfig)
    if field.metadata.get("values")
    for name in map(spellings.keyword, field.metadata["flags"])
    if name[0] != "-"
}
FIELDS = {field.name for field in dataclasses.fields(EngineConfig)}


def configured(**given: Any) -> EngineConfig:
    return spellings.configure("m", given)[0]


def drafted(given: dict[str, Any]) -> str:
    """The drafter that keywords of `LLM` mean, as `-d` spells it; errors as `LLM` raises them."""
    config, typed = spellings.configure("m", given)
    with given_as(typed):
        return DrafterSpec.of_config(config).text()


@pytest.fixture
def notes(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    spellings._warn.cache_clear()
    with caplog.at_level(logging.WARNING, logger="forerun"):
        yield caplog


def test_every_row_leads_to_something_that_exists() -> None:
    drafters = registry.names("drafters")
    options = {option for name in drafters for option in option_names(name)}
    assert {*DRAFTING.values()} <= options
    assert {*METHODS.values()} <= {*drafters}
    assert not (DRAFTING.keys() | KEYWORDS.keys()) & (FIELDS | options)
    assert not DRAFTING.keys() & KEYWORDS.keys()


@pytest.mark.parametrize("name", KEYWORDS)
def test_a_name_without_effect_changes_nothing_and_is_noted_once(name, notes) -> None:
    value = (KEYWORDS[name].values or [7])[0]
    assert configured(**{name: value}) == configured(**{name: value}) == EngineConfig(model="m")
    (note,) = notes.messages
    assert note.startswith(f"{name}={value!r} has no effect: ")


@pytest.mark.parametrize("name", [*KEYWORDS, *DRAFTING, "kv_cache_dtype", "speculative_config"])
def test_none_is_not_given(name, notes) -> None:
    assert configured(**{name: None}) == EngineConfig(model="m")
    assert notes.messages == []


@given(name=st.sampled_from([*STRICT]), value=st.text(min_size=1, max_size=8) | st.integers(2, 99))
def test_a_value_that_cannot_be_had_is_quoted(name: str, value: object) -> None:
    assume(str(value).lower() not in STRICT[name])
    with pytest.raises(ConfigError) as caught:
        configured(**{name: value})
    assert f"{name}={value!r} is not possible here: " in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ({"max_num_batched_tokens": 512}, {"prefill_chunk": 512}),
        ({"kv_cache_dtype": "float16"}, {"kv": "fp16"}),
        ({"-ctk": "f16", "-ctv": "f16"}, {"kv": "fp16"}),
        ({"quantization": "int8"}, {"quant": "int8"}),
        ({"quantization": "gguf"}, {}),
        ({"quantization": "awq_marlin", "revision": None, "enable_lora": False}, {}),
        ({"hf_overrides": {}, "limit_mm_per_prompt": {"image": 0}, "task": "embed"}, {}),
        ({"n_ctx": 512, "n_threads": 2, "verbose": False}, {"max_model_len": 512, "threads": 2}),
        ({"n_ctx": 0, "n_threads": None}, {}),
        ({"-np": "3", "-b": "64"}, {"max_num_seqs": 3, "prefill_chunk": 64}),
        ({"--max_model_len": "512"}, {"max_model_len": 512}),
        ({"device_map": "cpu"}, {"device": "cpu"}),
        ({"parallel": 2, "ctx_size": 512}, {"max_num_seqs": 2, "max_model_len": 512}),
        ({"max_num_batched_tokens": 64, "prefill_chunk": 32}, {"prefill_chunk": 32}),
        ({"-ctk": "f16", "-ctv": "f32"}, {"kv": "fp32"}),
        (
            {"drafter": "suffix", "speculative_config": {"method": "ngram"}},
            {"drafter": {"method": "prompt_lookup"}},
        ),
        ({"seed": 3}, {"seed": 3}),
        ({"max_num_batched_tokens": 256, "prefill_chunk": 256}, {}),
        ({"-tp": "1", "--trust-remote-code": True, "--no-enable-prefix-caching": True}, {}),
        ({"assistant_model": "s.gguf"}, {"draft_options": {"model": "s.gguf"}}),
        ({"speculative_config": {"method": "ngram"}}, {"drafter": {"method": "prompt_lookup"}}),
        ({"drafter": "ngram:num_draft=4"}, {"drafter": "prompt_lookup:num_draft=4"}),
    ],
)
def test_names_with_a_meaning_are_mapped(typed: dict, meant: dict) -> None:
    assert configured(**typed) == EngineConfig(**{"model": "m", **meant})


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"quantization": "hqq"}, "quantization='hqq' is not possible here: .*quant rounds them"),
        (
            {"enable_lora": True},
            "enable_lora=True is not possible here: LoRA adapters are not supported",
        ),
        ({"hf_overrides": {"a": 1}}, "is not possible here: the model's files decide"),
        ({"cpu_offload_gb": 4}, "is not possible here: memory_budget limits"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype='fp8' is not possible here: .*fp16"),
        ({"-np": "many"}, r"max_num_seqs must be a whole number, got 'many' \(given as -np\)"),
        ({"max_num_batched_tokens": 0}, r"prefill_chunk must be .* \(given as max_num_batched_to"),
        ({"gpu_memory_utilisation": 0.9}, "did you mean 'gpu_memory_utilization'"),
        ({"head_bit": 4}, "unknown option 'head_bit': did you mean 'head_bits'"),
        ({"max_running_seqs": 4}, "unknown option 'max_running_seqs': did you mean 'max_num_seqs'"),
        ({"speculative_config": 3}, "must be a mapping or its JSON, got 3"),
        ({"speculative_config": "{"}, "speculative_config is not JSON"),
    ],
)
def test_a_mistake_is_said_in_one_line(typed: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured(**typed)
    assert "\n" not in str(caught.value)


SMALL = "draft_model:model=s.gguf"
CONFIGS = [
    ({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
     "prompt_lookup:ngram_max=4,ngram_min=2,num_draft=5"),
    ({"method": "ngram", "prompt_lookup_min": 5}, "prompt_lookup:ngram_max=5,ngram_min=5"),
    ({"method": "suffix", "num_speculative_tokens": 32}, "suffix:num_draft=32"),
    ({"model": "s.gguf", "num_speculative_tokens": 3},
     "draft_model:model=s.gguf,num_draft=3,num_steps=7++recycling"),
    ({"model": "s.gguf", "method": "draft_model", "draft_tensor_parallel_size": 1, "quant": None}, SMALL),
    ({"assistant_model": "s.gguf", "num_assistant_tokens": 3, "assistant_confidence_threshold": 0.4},
     "draft_model:model=s.gguf,num_draft=3,num_steps=7,min_chance=0.4++recycling"),
    ({"prompt_lookup_num_tokens": 6, "max_matching_ngram_size": 2}, "prompt_lookup:ngram_max=2,num_draft=6"),
    ({"method": "draft-simple", "model": "s.gguf", "draft_p_min": "0.75"},
     "draft_model:model=s.gguf,min_chance=0.75"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "meant"), CONFIGS, ids=lambda value: str(value)[:40])
def test_a_configuration_means_the_same_in_all_places(config: dict, meant: str) -> None:
    assert drafted({"speculative_config": config}) == meant
    assert drafted({"speculative_config": json.dumps(config)}) == meant
    if "model" not in config and "quant" not in config:
        keys = {("drafter" if key == "method" else key): value for key, value in config.items()}
        assert drafted(keys) == meant


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "medusa"}, "drafter 'medusa': option 'model' must be given"),
        ({"method": "ngrams"}, "unknown drafter 'ngrams' .allowed: auto, dflash"),
        ({"method": "ngram", "num_speculative_tokens": 0},
         r"'prompt_lookup': num_draft must be at least 1, got 0 \(given as num_speculative_tokens\)"),
        ({"method": "ngram", "num_speculative_tokens": "x"},
         r"option 'num_draft' must be a whole number.*\(given as num_speculative_tokens\)"),
        ({"method": "suffix", "draft_p_min": 0.5},
         r"'suffix' has no option min_chance=0.5 .*these have it: dflash, .* \(given as draft_p_min\)"),
        ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size=2 is not possible here"),
    ],
)  # fmt: skip
def test_a_mistake_names_our_option_and_what_was_typed(config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        drafted({"speculative_config": config})
    assert "\n" not in str(caught.value)


@given(st.sampled_from([*METHODS]), st.booleans(), st.booleans())
def test_a_method_is_read_in_any_case_and_with_either_dash(name, is_upper, is_dashed) -> None:
    typed = name.replace("_", "-") if is_dashed else name.replace("-", "_")
    meant = spellings.drafter({"method": typed.upper() if is_upper else typed})
    assert meant == {"method": METHODS[name]}


def test_the_parts_of_a_drafter_are_translated() -> None:
    assert spellings.drafter("ngram++recycling") == "prompt_lookup++recycling"
    assert (
        spellings.drafter("suffix++ngram-simple:num_draft=3") == "suffix++prompt_lookup:num_draft=3"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"draft_options": {"num_draft": 0}}, r"num_draft must be .*, got 0 \(given as --draft-max\)$"),
        ({"drafter": "none", "draft_options": {"num_draft": 4}},
         r"no option num_draft=4 .* \(given as --draft-max\)$"),
        ({"drafter": "none", "draft_model": "x"}, r"no option model='x' .* \(given as -md\)$"),
        ({"drafter": "draft_model"}, "option 'model' must be given: model=...$"),
        ({"drafter": "nothing"}, "unknown drafter 'nothing'[^(]*\\(allowed: [^(]*\\)$"),
    ],
)  # fmt: skip
def test_an_error_says_what_its_option_was_called(config: dict, message: str) -> None:
    flags = {"num_draft": "--draft-max", "max_model_len": "-c", "model": "-m", "draft_model": "-md"}
    with pytest.raises(ConfigError, match=message), given_as(flags):
        DrafterSpec.of_config(EngineConfig(**config)).text()


def test_type_checkers_know_every_keyword_of_an_llm_with_its_type() -> None:
    types = EngineConfig.__annotations__ | {"drafter": "str | Mapping[str, object] | Drafter"}
    del types["model"]
    names = {name: hint.__forward_arg__ for name, hint in Keywords.__annotations__.items()}
    assert {name: names[name] for name in types} == types
    others = names.keys() - types.keys()
    assert all(map(spellings.is_known, others))
    assert {*DRAFTING, spellings.SPECULATIVE} <= others


VLLM = """
tokenizer=None tokenizer_mode='auto' skip_tokenizer_init=False trust_remote_code=False allowed_local_media_path=''
tensor_parallel_size=1 dtype='auto' quantization=None revision=None tokenizer_revision=None code_revision=None seed=0
gpu_memory_utilization=0.9 swap_space=4 cpu_offload_gb=0 enforce_eager=False disable_custom_all_reduce=False
hf_token=None hf_overrides=None hf_config_path=None mm_processor_kwargs=None pooler_config=None compilation_config=None
structured_outputs_config=None kv_cache_memory_bytes=None logits_processors=None max_seq_len_to_capture=8192
disable_async_output_proc=False enable_prefix_caching=True enable_chunked_prefill=True disable_log_stats=True
load_format='auto' download_dir=None runner='auto' convert='auto' task='auto' block_size=16 enable_lora=False
max_loras=1 max_lora_rank=16 limit_mm_per_prompt={} distributed_executor_backend=None pipeline_parallel_size=1
data_parallel_size=1 worker_cls='auto' generation_config='auto' override_generation_config={} reasoning_parser=''
guided_decoding_backend='auto' logprobs_mode='raw_logprobs' max_logprobs=20 kv_cache_dtype='auto' model_impl='auto'
config_format='auto' mamba_cache_dtype='auto' enable_expert_parallel=False disable_sliding_window=False
disable_cascade_attn=False use_v2_block_manager=True num_scheduler_steps=1 preemption_mode=None rope_scaling={}
rope_theta=None device='auto' additional_config={} kv_transfer_config=None calculate_kv_scales=False
num_gpu_blocks_override=None prefix_caching_hash_algo='sha256' enable_prompt_embeds=False enable_mm_embeds=False
ray_workers_use_nsight=False enable_sleep_mode=False scheduling_policy='fcfs' long_prefill_token_threshold=0
max_num_partial_prefills=1 disable_hybrid_kv_cache_manager=False optimization_level=2 performance_mode='balanced'
moe_backend='auto' language_model_only=False mm_processor_cache_gb=4 enable_return_routed_experts=False"""
"""Keywords of its `LLM` with what they are there."""
LLAMA_CPP = """
n_gpu_layers=0 split_mode=1 main_gpu=0 tensor_split=None vocab_only=False use_mmap=True use_mlock=False
kv_overrides=None n_ctx=0 n_batch=512 n_ubatch=512 n_threads=None n_threads_batch=None rope_scaling_type=-1
pooling_type=-1 rope_freq_base=0.0 rope_freq_scale=0.0 yarn_ext_factor=-1.0 yarn_attn_factor=1.0
yarn_beta_fast=32.0 yarn_beta_slow=1.0 yarn_orig_ctx=0 logits_all=False embedding=False offload_kqv=True
flash_attn=False op_offload=None swa_full=None no_perf=False last_n_tokens_size=64 lora_base=None lora_scale=1.0
lora_path=None numa=False chat_format=None chat_handler=None draft_model=None tokenizer=None type_k=None type_v=None
spm_infill=False verbose=True"""
"""The same of llama-cpp-python's `Llama`."""


@pytest.mark.parametrize("typed", [*VLLM.split(), *LLAMA_CPP.split()])
def test_keywords_at_their_neutral_values_change_nothing(typed: str) -> None:
    name, _, value = typed.partition("=")
    given = ast.literal_eval(value)
    field = spellings._FIELDS.get(name)
    config = spellings.configure("m", {name: given})[0]
    kept = (
        dataclasses.replace(config, **{field: getattr(EngineConfig(), field)}) if field else config
    )
    assert kept == EngineConfig(model="m")


@pytest.mark.parametrize(
    "typed", ["rope_scaling={'type': 'yarn'}", "disable_sliding_window=True", "yarn_orig_ctx=4096"]
)
def test_the_same_keywords_with_an_effect_are_refused(typed: str) -> None:
    name, _, value = typed.partition("=")
    with pytest.raises(ConfigError, match=f"{name}=.* is not possible here"):
        spellings.configure("m", {name: ast.literal_eval(value)})


COMMANDS = """
--jinja -c=4096 -ngl=99 -fa=on -ctk=f16 -ctv=f16 -b=2048 -ub=512 -np=2 --no-mmap --mlock --metrics
--reasoning-format=auto --cache-reuse=256 --no-warmup --swa-full -kvu -cd=4096 --draft-p-min=0.8
--cache-ram=2048 --ctx-checkpoints=8 --fit=on --kv-unified --reasoning=on
--threads-http=4 --timeout=600 --props --log-verbosity=3 -cb --cont-batching --defrag-thold=0.1
--slot-save-path=/tmp --spec-draft-p-min=0.8 --hf-repo-draft=org/draft --repeat-last-n=64 --no-context-shift
--split-mode=none --main-gpu=0 --numa=distribute --prio=2 --cpu-mask=ff --enable-auto-tool-choice
--tool-call-parser=hermes --reasoning-parser=qwen3 --swap-space=4 --disable-log-requests
--no-enable-log-requests --uvicorn-log-level=warning --generation-config=auto --max-logprobs=20
--enable-prompt-tokens-details --chat-template-content-format=openai --language-model-only --async-scheduling
--max-seq-len-to-capture=8192 --block-size=16 --guided-decoding-backend=xgrammar
--structured-outputs-config={} --load-format=safetensors --download-dir=/tmp --task=generate --runner=auto
--convert=none --gpu-memory-utilization=0.9 --trust-remote-code --enforce-eager --enable-prefix-caching
--no-enable-prefix-caching --max-num-batched-tokens=2048 --max-num-seqs=8 --kv-cache-dtype=auto
--enable-chunked-prefill --disable-log-stats --pipeline-parallel-size=1 --data-parallel-size=1
--distributed-executor-backend=mp --compilation-config=3 --limit-mm-per-prompt={} --cpu-offload-gb=0
--scheduling-policy=fcfs --max-log-len=100 --enable-expert-parallel --tokenizer-mode=auto --revision=main
--hf-overrides={} --api-server-count=1 --kv-cache-memory-bytes=1000 --model-impl=auto --config-format=auto
--enable-force-include-usage --max-lora-rank=16 --quantization=awq_marlin"""
"""Of quickstarts and threads about llama-server and vLLM."""
WOULD_CHANGE = """
--rope-scaling=yarn --rope-scale=4 --yarn-orig-ctx=4096 --rope-freq-base=1e6 --lora=a --mmproj=a
--grammar-file=a --override-kv=a --models-dir=a --enable-lora=true --hf-overrides={"a":1} --tokenizer=other
--ssl-keyfile=a --root-path=/a --pipeline-parallel-size=2 --dry-multiplier=0.8 --samplers-that-do-not-exist=1"""
"""Without their effect answers, or who gets them, would be others."""


@pytest.mark.parametrize("flag", COMMANDS.split())
def test_flags_that_have_nothing_to_do_here_are_read(flag: str) -> None:
    name, equals, value = flag.partition("=")
    configured(**{name: value if equals else True})


@pytest.mark.parametrize("flag", WOULD_CHANGE.split())
def test_flags_that_would_change_answers_are_refused_by_name(flag: str) -> None:
    name, _, value = flag.partition("=")
    with pytest.raises(ConfigError, match=name):
        configured(**{name: value})
