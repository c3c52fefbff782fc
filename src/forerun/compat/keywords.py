"""The keywords of `LLM(...)` for type checkers: `EngineConfig`'s fields, and what other engines call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from forerun.core.config import Precision, Quant
from forerun.drafters.base.contract import Drafter


class EngineOptions(TypedDict, total=False):
    """The fields of `EngineConfig` but the model."""

    drafter: str | Mapping[str, object] | Drafter
    draft_model: str | None
    draft_quant: Quant | None
    draft_head_bits: int | None
    num_draft: int | None
    draft_options: Mapping[str, object]
    min_draft: int
    draft_budget: int
    controller: bool
    device: str
    quant: Quant
    head_bits: int | None
    kv: Precision
    threads: int | None
    tensor_parallel_size: int
    pipeline_parallel_size: int
    prompt_cache: str | None
    prompt_cache_size: str | int
    max_model_len: int | None
    max_num_seqs: int
    memory_budget: str | int | None
    is_server: bool
    num_vectors: int
    prefill_chunk: int
    seed: int | None


class Keywords(EngineOptions, total=False):
    """Also the names of vLLM, llama.cpp and Hugging Face (`compat.engine`)."""

    speculative_config: Mapping[str, object] | str | None
    assistant_confidence_threshold: float | None
    assistant_early_exit: int | None
    assistant_model: str | None
    block_size: int
    compilation_config: object
    config_format: str
    conversation: bool
    cpu_offload_gb: float
    device_map: object
    disable_log_stats: bool
    distributed_executor_backend: object
    download_dir: str | None
    draft_p_min: float | None
    draft_tensor_parallel_size: int | None
    dtype: object
    enable_chunked_prefill: bool | None
    enable_lora: bool
    enable_prefix_caching: bool | None
    enforce_eager: bool
    flash_attn: object
    gpu_memory_utilization: float
    hf_overrides: object
    jinja: bool
    kv_cache_dtype: str
    limit_mm_per_prompt: object
    load_format: str
    max_logprobs: int
    max_matching_ngram_size: int | None
    max_num_batched_tokens: int | None
    max_seq_len_to_capture: int
    metrics: bool
    mlock: bool
    mmap: bool
    model_path: str
    n_batch: int
    n_ctx: int
    n_gpu_layers: int
    n_gpu_layers_draft: int
    n_threads: int | None
    no_mmap: bool
    num_assistant_tokens: int | None
    num_speculative_tokens: int | None
    prompt_cache_all: bool
    prompt_lookup_max: int | None
    prompt_lookup_min: int | None
    prompt_lookup_num_tokens: int | None
    quantization: str | None
    revision: None
    runner: str
    spec_draft_p_min: float | None
    swap_space: float
    task: str
    tokenizer: None
    tokenizer_mode: str
    tokenizer_revision: None
    torch_dtype: object
    trust_remote_code: bool
    ubatch_size: int
    verbose: bool
