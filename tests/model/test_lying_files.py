"""A model file whose header lies is refused in one line, quickly, or it loads and computes finite numbers."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from forerun.core.errors import ConfigError, LoadError
from forerun.model.backends import native
from forerun.model.loader import load_model, read_config
from forerun.weights.checkpoint import Checkpoint, open_checkpoint
from tests.model.gguf_converter import as_gguf
from tests.model.gguf_spellings import SPELLINGS
from tests.model.test_families import longrope
from tests.model.tiny import MemoryCheckpoint, checkpoint_of, hf_model, load_torch, prefill
from tests.weights.files import byte_level_vocabulary, sentencepiece_vocabulary
from tests.weights.raw_gguf import RawGguf

LIMIT_S = 2.0
MISSING = object()
LIES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 5, 7, 100, 4096, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 62),
    *((1 << 64) - 1, 0.0, 0.5, -1.0, 1e-30, 1e30, float("nan"), float("inf"), -float("inf")),
    *("", "text", True, False, [], [1, 2], ["a"], [0.5] * 8, MISSING),
)
FAMILIES: Mapping[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    # our name: (Hugging Face's, GGUF's, changes of the model, more metadata)
    "llama": ("llama", "llama", {"head_dim": 16}, {"rope.dimension_count": 16}),
    "qwen3": (
        "qwen3",
        "qwen3",
        {},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
        | {"rope.scaling.original_context_length": 128, "rope.scaling.attn_factor": 1.0},
    ),
    "phi3": ("phi3", "phi3", {}, {"rope.freq_base": 5000.0, "attention.sliding_window": 8}),
    "granite": (
        "granite",
        "granite",
        {},
        {"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.2}
        | {"logit_scale": 2.5, "rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
    ),
    "gpt_bigcode": ("gpt_bigcode", "starcoder", {}, {}),
    "gemma3": (
        "gemma3",
        "gemma3",
        {},
        {"attention.sliding_window": 5, "attention.sliding_window_pattern": [True, False]}
        | {"rope.freq_base_swa": 100.0, "attn_logit_softcapping": 2.0},
    ),
    "gpt_oss": (
        "gpt_oss",
        "gpt-oss",
        {},
        {"attention.sliding_window": 5, "attention.sliding_window_pattern": 2}
        | {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 48},
    ),
    "granitemoe": (
        "granitemoeshared",
        "granitemoe",
        {},
        {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24}
        | {"expert_shared_feed_forward_length": 40, "rope.scaling.finetuned": True},
    ),
    "cohere": (
        "cohere",
        "command-r",
        {"attention_bias": False},
        {"logit_scale": 0.5, "rope.freq_base": 5e5, "rope.dimension_count": 8},
    ),
    "glm4": ("glm4", "glm4", {}, {"rope.dimension_count": 4}),
    "ministral3": (
        "ministral3",
        "mistral3",
        {},
        {"rope.scaling.original_context_length": 8, "rope.scaling.yarn_log_multiplier": 1.0}
        | {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
        | {"attention.temperature_scale": 0.5},
    ),
    **{
        name: next(each for each in SPELLINGS if each[0] == name)
        for name in ("deepseek_v3", "nemotron_h_moe", "glm4_moe")
    },
}


def lies_about(value: Any) -> list[Any]:
    """Values a key or a number of an entry is given instead."""
    near = [value - 1, value + 1, 2 * value, -value] if isinstance(value, int | float) else []
    return [*LIES, *near]


def check(checkpoint: Checkpoint | Path) -> str | None:
    """Load it and compute; the complaint, None if it works. Anything but LoadError and ConfigError is a bug.

    What is too narrow for the kernels runs on torch.
    """
    start = time.process_time()
    try:
        if isinstance(checkpoint, Path):
            checkpoint = open_checkpoint(checkpoint)
            tokenizer = checkpoint.tokenizer()
            ids = tokenizer.encode("hello wo")
            tokenizer.decode(ids)
        else:
            ids = [3, 1, 4, 1, 5]
        config, _ = read_config(checkpoint)
        model = (load_torch if native.unsupported(config) else load_model)(checkpoint)
        assert max(ids) < model.config.vocab_size
        logits = prefill(model, ids[: model.config.max_position])
        assert logits.isfinite().all()
        complaint = None
    except (ConfigError, LoadError) as error:
        complaint = str(error)
    assert time.process_time() - start < LIMIT_S
    assert complaint is None or ("\n" not in complaint and len(complaint) < 600)
    return complaint


def honest(family: str, tokenizer: str = "gpt2", **sizes: int) -> RawGguf:
    """The file of a tiny random model of a family; `sizes` change its configuration."""
    name, architecture, changes, extra = FAMILIES[family]
    if tokenizer == "gpt2":
        tokens, types, merges = byte_level_vocabulary()
        vocabulary = {"merges": merges, "pre": "smollm", "eos_token_id": 263}
    else:
        tokens, types, scores = sentencepiece_vocabulary()
        vocabulary = {"scores": scores, "unknown_token_id": 0, "bos_token_id": 1}
        vocabulary |= {"eos_token_id": 2, "add_space_prefix": True, "add_bos_token": True}
    vocabulary |= {"tokens": tokens, "token_type": types, "model": tokenizer}
    model = hf_model(name, vocab_size=len(tokens), **{**changes, **sizes})
    memory = as_gguf(model, architecture, extra)
    metadata = {"general.architecture": architecture, "general.alignment": 32, **memory.config}
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}
    return RawGguf.of(metadata, {k: v.numpy() for k, v in memory.tensors.items()})


OFTEN = ("llama", "gemma3", "gpt_oss", "ministral3")
"""Families that have the most kinds of keys between them; the others are slow tests."""


@pytest.fixture(
    scope="module",
    params=[
        each if each in OFTEN else pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES
    ],
)
def raw(request: pytest.FixtureRequest) -> RawGguf:
    return honest(request.param)


def check_bytes(data: bytes, folder: Path) -> str | None:
    path = folder / "model.gguf"
    path.unlink(missing_ok=True)  # writing over a file waits for the disk
    path.write_bytes(data)
    return check(path)


def test_the_honest_file_works(raw: RawGguf, tmp_path: Path) -> None:
    assert check_bytes(raw.to_bytes(), tmp_path) is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope.dimension_count", 100, "'llama.rope.dimension_count' is 100, but must be .* 2 to 16"),
        ("rope.dimension_count", 15, "'llama.rope.dimension_count' is 15, but must be even"),
        ("block_count", 0, "'llama.block_count' is 0, but must be a whole number from 1"),
        ("block_count", 1, "'llama.block_count' is 1, but .* tensors of 2 layers"),
        ("block_count", 1 << 20, "'llama.block_count' is 1048576, but must be .* to 4096"),
        ("attention.head_count", 3, "3 query heads cannot .*'llama.attention.head_count' is 3"),
        ("attention.head_count", 8, r"attn_q.weight' should be .*\('llama.attention.head_count' is 8"),
        ("context_length", 0, "'llama.context_length' is 0, but must be"),
        ("feed_forward_length", 1 << 31, "'llama.feed_forward_length' is 2147483648, but must be"),
        ("feed_forward_length", 52, "'blk.0.ffn_up.weight' .*'llama.feed_forward_length' is 52"),
        ("embedding_length", "32", "'llama.embedding_length' is '32', but must be a whole number"),
        ("block_count", True, "'llama.block_count' is True, but must be a whole number"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "epsilon' is nan, but must be a number"),
        ("rope.freq_base", -1.0, "'llama.rope.freq_base' is -1.0, but must be a number from 1.001"),
    ],
)  # fmt: skip
def test_a_wrong_number_is_named_with_its_key(
    key: str, value: object, message: str, tmp_path: Path
) -> None:
    raw = honest("llama")
    raw.metadata[f"llama.{key}"] = value
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.to_bytes())
    with pytest.raises(LoadError, match=message):
        load_model(open_checkpoint(path))


def test_no_lie_in_the_metadata_gets_through(raw: RawGguf, tmp_path: Path) -> None:
    cases = [
        (key, lie)
        for key, value in raw.metadata.items()
        for lie in lies_about(value)
        if lie is MISSING or type(lie) is not type(value) or lie != value
    ]
    if "llama.block_count" not in raw.metadata:  # llama has them all
        cases = random.Random(0).sample(cases, 150)
    for key, lie in cases:
        metadata = {k: v for k, v in raw.metadata.items() if k != key}
        if lie is not MISSING:
            metadata[key] = lie
        check_bytes(replace(raw, metadata=metadata).to_bytes(), tmp_path)


@pytest.mark.parametrize("tokenizer", ["gpt2", "llama"])
def test_no_lie_in_the_vocabulary_gets_through(tokenizer: str, tmp_path: Path) -> None:
    raw, rng = honest("llama", tokenizer), random.Random(1)
    keys = [key for key in raw.metadata if key.startswith("tokenizer.")]
    odd = ["", " ", "a" * 5000, "<0x41>", "<|im_end|>", "he", "\0", "▁", "🙂", "h e l l o", "Ġ"]
    numbers = [-1, 0, 1, 3, 6, 7, 99, 1 << 31, 1 << 62, 1e30, float("nan"), -float("inf")]
    for _ in range(150):
        key = rng.choice(keys)
        value = raw.metadata[key]
        if isinstance(value, list):
            value = list(value)
            for _ in range(rng.choice([1, 3, len(value)])):
                lies = odd if isinstance(value[0], str) else numbers
                lies = [lie for lie in lies if isinstance(lie, type(value[0]))]
                value[rng.randrange(len(value))] = rng.choice([*lies, *value[:3]])
            value = rng.choice([value, value[:-1], value[:1], value + value[:1], []])
        else:
            value = rng.choice([*lies_about(value)[:-4], *odd])
        metadata = {**raw.metadata, key: value}
        if value is MISSING:
            del metadata[key]
        check_bytes(replace(raw, metadata=metadata).to_bytes(), tmp_path)


def test_no_lie_in_a_tensors_entry_gets_through(raw: RawGguf, tmp_path: Path) -> None:
    rng, whole = random.Random(2), {"type_id", "dims", "offset", "name"}
    for _ in range(200):
        i, what = rng.randrange(len(raw.entries)), rng.choice(sorted(whole))
        entry = raw.entries[i]
        other = rng.choice(raw.entries)
        lie: Any
        if what == "type_id":
            lie = rng.choice([*range(42), 1 << 31])
        elif what == "offset":
            lie = rng.choice([entry.offset + d for d in (1, 32, -32 % (1 << 64), 1 << 62)])
            lie = rng.choice([lie % (1 << 64), other.offset, (1 << 64) - 32])
        elif what == "name":
            lie = rng.choice(["", "x", other.name, entry.name + "\n", entry.name.upper()])
        else:
            dims = [rng.choice([d, 0, 1, d + 1, d // 2, 2 * d, 1 << 63]) for d in entry.dims]
            lie = rng.choice([dims, dims[::-1], dims[:1], [*dims, 1], [], [*dims, 2, 2, 2]])
            lie = tuple(lie)
        entries = list(raw.entries)
        entries[i] = replace(entry, **{what: lie})
        check_bytes(replace(raw, entries=entries).to_bytes(), tmp_path)


def test_no_cut_file_gets_through(raw: RawGguf, tmp_path: Path) -> None:
    data, rng = raw.to_bytes(), random.Random(3)
    for stop in [0, 1, len(data) - 1, *(rng.randrange(len(data)) for _ in range(40))]:
        assert check_bytes(data[:stop], tmp_path) is not None


class Recorder(dict[str, Any]):
    """A config that knows which of its keys were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
HF_MODELS: Mapping[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}},
    "qwen2": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0}},
    "phi3": {"rope_parameters": longrope(4, 16), "original_max_position_embeddings": 16},
    "granite": {"rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    "cohere": {},
    "hunyuan": {"rope_parameters": {"rope_type": "dynamic", "alpha": 100.0, "factor": 1.0}},
    "opt": {},
    "gpt_bigcode": {},
}


@pytest.mark.parametrize("family", HF_MODELS)
def test_no_lie_in_a_config_json_gets_through(family: str) -> None:
    honest = checkpoint_of(hf_model(family, **HF_MODELS[family]))
    recorder = Recorder(honest.config)
    assert check(replace(honest, config=recorder)) is None  # type: ignore[arg-type]
    cases: list[Mapping[str, Any]] = []
    for key in sorted(recorder.read):
        cases += [{**honest.config, key: lie} for lie in lies_about(honest.config.get(key))]
    rope = honest.config.get("rope_parameters") or {}
    for key, value in rope.items():
        for lie in lies_about(value):
            cases.append({**honest.config, "rope_parameters": {**rope, key: lie}})
    for config in random.Random(4).sample(cases, min(len(cases), 300)):
        check(as_json(replace(honest, config=config)))


def as_json(checkpoint: MemoryCheckpoint) -> Checkpoint:
    """Without what is missing."""
    config = {k: v for k, v in checkpoint.config.items() if v is not MISSING}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict):
        config["rope_parameters"] = {k: v for k, v in rope.items() if v is not MISSING}
    return replace(checkpoint, config=config)  # type: ignore[return-value]
