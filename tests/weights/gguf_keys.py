"""What each key of a GGUF's metadata means: a table of docs/internals/folders.md, each line with a trial or a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.weights.files import byte_level_vocabulary, sentencepiece_vocabulary
from tests.weights.folder_keys import IDLE, READ, REFUSED

TOKENIZER = "tokenizer.ggml."


def _byte_level() -> dict[str, Any]:
    tokens, types, merges = byte_level_vocabulary()
    values = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "token_type": types}
    values |= {"merges": merges, "eos_token_id": tokens.index("<|endoftext|>")}
    return {TOKENIZER + key: value for key, value in values.items()}


def _sentencepiece() -> dict[str, Any]:
    tokens, types, scores = sentencepiece_vocabulary()
    values = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    return {TOKENIZER + key: value for key, value in values.items()}


BYTES, PIECES = _byte_level(), _sentencepiece()
WORDS, TYPES = BYTES[TOKENIZER + "tokens"], BYTES[TOKENIZER + "token_type"]
HE, HELLO, TWELVE = (WORDS.index(word) for word in ("he", "hello", "12"))
LETTERS = [WORDS.index(letter) for letter in "hello"]
OTHER_TYPES = [4 if word == "ll" else kind for word, kind in zip(WORDS, TYPES, strict=True)]
WORSE = [-9.0 if word == "▁hello" else 0.0 for word in PIECES[TOKENIZER + "tokens"]]
HOLES = {f"{TOKENIZER}fim_{key}_token_id": i for i, key in enumerate(("pre", "suf", "mid"))}
CHAT = {"tokenizer.chat_template": "x"}


@dataclass(frozen=True)
class Line:
    """What we do with a key, and what shows it: a change of the plain metadata `of`, or the test that holds it.

    `shows` are what the changed file then has, by the names of `aspects` in the test; all others are as before.
    `beside` are keys that both files have; None takes a key away. Keys that begin with a dot are an architecture's.
    """

    key: str
    does: Literal["read", "no effect", "refused"]
    meaning: str
    change: Mapping[str, Any] = field(default_factory=dict)
    shows: Mapping[str, Any] = field(default_factory=dict)
    of: Mapping[str, Any] = field(default_factory=lambda: BYTES)
    beside: Mapping[str, Any] = field(default_factory=dict)
    held: str = ""
    complaint: str = ""


def held(key: str, meaning: str, where: str, does: Any = READ) -> Line:
    """A key that a test holds already: the file in tests/ and, behind `::`, its name, or what the file has of it."""
    return Line(key, does, meaning, held=where)


def token(key: str, does: Any, meaning: str, value: Any, **options: Any) -> Line:
    """A key below `tokenizer.ggml.`."""
    key = TOKENIZER + key
    return Line(key, does, meaning, {key: value}, **options)


def idle(key: str, meaning: str, value: Any, **options: Any) -> Line:
    return Line(key, IDLE, meaning, {key: value}, **options)


FILE = (
    Line("general.architecture", REFUSED, "if it is absent or unknown; else it is the family",
         {"general.architecture": None}, complaint="no general.architecture"),
    held("general.type", "other files are refused", "weights/test_gguf_roles.py::test_what_is_no_model_is_told"),
    held("general.name", "what a drafter's file says its model is; Phi-3's spaces",
         "weights/test_identity.py::general.name"),
    held("general.alignment", "of the tensors", "weights/test_gguf_layouts.py::test_any_order_and_alignment_reads"),
    idle("general.file_type", "each tensor says how it is stored", 7),
    idle("general.quantization_version", "each tensor says how it is stored", 1),
    held("split.no", "which part it is: it must be as in the name",
         "weights/test_gguf_parts.py::test_parts_that_do_not"),
    held("split.count", "the same", "weights/test_gguf_parts.py::test_a_part_under_another_name_is_refused"),
    held("split.tensors.count", "of all parts, which must have so many",
         "weights/test_gguf_parts.py::take_from_another"),
    idle("quantize.imatrix.file", "how it was made; so are all `quantize.imatrix.*`", "x.dat"),
)  # fmt: skip
TOKENS = (
    Line(f"{TOKENIZER}model", REFUSED, "`gpt2`, `llama` and `gemma4` are read", {f"{TOKENIZER}model": "bert"},
         complaint="tokenizer"),
    token("pre", READ, "how text is cut before it is merged; absent: `default`", "gpt-2", shows={"ids": "12"}),
    Line(f"{TOKENIZER}tokens", REFUSED, "if they are absent", {f"{TOKENIZER}tokens": None}, complaint="no vocabulary"),
    token("token_type", READ, "control and user-defined tokens are found before merges", OTHER_TYPES,
          shows={"ids": "hello", "to": [HE, WORDS.index("ll"), WORDS.index("o")]}),
    token("scores", READ, "which tokens SentencePiece merges first", WORSE, of=PIECES,
          shows={"ids": " hello w <tool>he"}),
    token("scores", IDLE, "of byte-level BPE", [float(i) for i in range(len(WORDS))]),
    token("merges", READ, "which pairs byte-level BPE merges, the first first", ["1 2"],
          shows={"ids": "hello", "to": LETTERS}),
    token("merges", IDLE, "of SentencePiece: the scores decide, as in llama.cpp", ["h e"], of=PIECES),
    token("added_tokens", IDLE, "`token_type` has them", ["<x>"]),
    token("token_type_count", IDLE, "of BERT", 2),
    token("bos_token_id", READ, "the token before a text, if one is added", HE, shows={"bos": HE}),
    token("eos_token_id", READ, "it ends texts and answers", HE, shows={"eos": HE, "ends": {HE}}),
    token("eot_token_id", READ, "it ends answers", HE, shows={"ends": {HE}}),
    token("eom_token_id", READ, "it ends answers", HE, shows={"ends": {HE}}),
    token("unknown_token_id", READ, "of SentencePiece: for what has no bytes", 0, held="text/test_tokenizer.py::<unk>"),
    token("unknown_token_id", IDLE, "byte-level BPE has all bytes", HE),
    token("padding_token_id", IDLE, "nothing is filled up", HE),
    token("mask_token_id", IDLE, "drafters of DFlash read it", HE),
    token("seperator_token_id", IDLE, "of BERT; spelled so", HE),
    token("cls_token_id", IDLE, "of BERT", HE),
    *(token(f"fim_{key}_token_id", READ, f"the token for filling in: {what}", 3, beside=HOLES,
            shows={"fill": (field, 3)})
      for key, field, what in (("pre", "prefix", "before the beginning"), ("suf", "suffix", "before the end"),
                               ("mid", "middle", "where the filling begins"))),
    *(token(f"fim_{key}_token_id", READ, f"{what}; it ends fillings", 5, beside=HOLES,
            shows={"fill": (field, 5), "ends": {5}})
      for key, field, what in (("sep", "file", "before a file's name"), ("rep", "repo", "before a repository's"),
                               ("pad", "pad", "padding"))),
    *(token(f"{key}_token_id", IDLE, "the older name: the token's text decides, as in llama.cpp", 3)
      for key in ("prefix", "suffix", "middle")),
    token("add_bos_token", READ, "whether BOS stands before texts; absent: by `pre` and `model`", True,
          beside={TOKENIZER + "bos_token_id": HE}, shows={"ids": "", "to": [HE], "texts": ["hehello", "he12", "he"]}),
    token("add_bos_token", IDLE, "without a BOS", True),
    token("add_eos_token", READ, "whether EOS stands behind texts", True,
          shows={"suffix": (BYTES[TOKENIZER + "eos_token_id"],)}),
    token("add_sep_token", IDLE, "of BERT", True),
    token("add_space_prefix", READ, "false: SentencePiece puts no space before a text", False, of=PIECES,
          shows={"ids": "hello", "space": False, "texts": ["<s>hello", "<s>12"]}),
    token("add_space_prefix", IDLE, "of byte-level BPE", True),
    token("remove_extra_whitespaces", IDLE, "of T5", True, of=PIECES),
    token("precompiled_charsmap", IDLE, "of T5", [1, 2, 3], of=PIECES),
    Line("tokenizer.chat_template", READ, "the chat template", {"tokenizer.chat_template": "x"}, {"template": "x"}),
    Line("tokenizer.chat_template.tool_use", READ, "the one for chats with tools",
         {"tokenizer.chat_template.tool_use": "y"},
         {"template": "{% if tools %}{{ '' }}y{{ '' }}{% else %}{{ '' }}x{{ '' }}{% endif %}"},
         beside=CHAT),
    idle("tokenizer.chat_template.rag", "any other name: nothing asks for it", "y", beside=CHAT),
    idle("tokenizer.chat_templates", "the names of these", ["rag"]),
    idle("tokenizer.huggingface.json", "`tokenizer.ggml.*` decide, as in llama.cpp", "{}"),
)  # fmt: skip
"""What decides on token ids and texts, where answers end, and on chats."""

_SAMPLING = "text/test_generation.py::SAMPLING_"
GENERATION = (
    *(held(f"general.sampling.{key}", "sampling", _SAMPLING + key.upper())
      for key in ("temp", "top_k", "top_p", "min_p", "penalty_repeat")),
    *(held(f"general.sampling.{key}", "named in the log", f"text/test_generation.py::{key}", IDLE)
      for key in ("penalty_last_n", "mirostat", "xtc_probability", "sequence")),
    *(idle(f"general.sampling.{key}", "of samplers that are not done", 0.5)
      for key in ("mirostat_tau", "mirostat_eta", "xtc_threshold")),
)  # fmt: skip

_ROPE = "model/test_gguf_families.py::"
_YARN = {
    ".rope.scaling.type": "yarn",
    ".rope.scaling.factor": 4.0,
    ".rope.scaling.original_context_length": 64,
} | {".rope.freq_base": 50.0}


def arch(key: str, does: Any, meaning: str, value: Any, **options: Any) -> Line:
    return Line(key, does, meaning, {key: value}, **options)


NUMBERS = (
    arch(".rope.freq_base", READ, "theta; absent: 10000", 50.0),
    arch(".rope.dimension_count", READ, "how many features of a head turn; absent: all", 4),
    arch(".rope.dimension_sections", IDLE, "of pictures: all are alike in texts", [1, 1, 2, 0]),
    arch(".rope.scaling.type", READ, "none, linear, yarn or longrope", "none", beside=_YARN),
    arch(".rope.scaling.type", REFUSED, "any other", "xyz", complaint="rope scaling 'xyz' is not supported"),
    arch(".rope.scaling.factor", READ, "how much longer texts are; without a type it is linear", 3.0),
    arch(".rope.scale_linear", READ, "the older name", 3.0),
    arch(".rope.scale_linear", IDLE, "beside the newer one", 3.0, beside={".rope.scaling.factor": 2.0}),
    arch(".rope.scaling.original_context_length", READ, "of yarn and longrope", 16, beside=_YARN),
    arch(".rope.scaling.finetuned", IDLE, "Granite's hybrids alone read it: false: without positions", True),
    arch(".rope.scaling.attn_factor", READ, "a factor on cos and sin, besides yarn's own", 1.5, beside=_YARN),
    arch(".rope.scaling.yarn_beta_fast", READ, "where yarn's band begins", 2.0, beside=_YARN),
    arch(".rope.scaling.yarn_beta_slow", READ, "where it ends", 0.1, beside=_YARN),
    arch(".rope.scaling.yarn_log_multiplier", READ, "how much it sharpens", 0.5, beside=_YARN),
    arch(".rope.scaling.yarn_attn_factor", IDLE, "yarn's own is worked out, as in llama.cpp", 1.5, beside=_YARN),
    arch(".rope.scaling.yarn_ext_factor", REFUSED, "with yarn, from 0, but 1", 0.5, beside=_YARN,
         complaint="yarn_ext_factor=0.5 is not supported"),
    arch(".rope.scaling.yarn_ext_factor", IDLE, "below 0: the usual", -1.0, beside=_YARN),
    arch(".rope.scaling.alpha", IDLE, "of Hunyuan: `rope.freq_base` has it in", 1000.0),
    arch(".attention.causal", REFUSED, "if false: tokens would see later ones", False,
         complaint="attention.causal=False is not supported"),
    arch(".vocab_size", IDLE, "the rows of the embedding are counted", 7),
    arch(".attention.layer_norm_rms_epsilon", READ, "added to the mean square", 0.5),
    *(held(f".{key}", what, f"model/gguf_spellings.py::{key}") for key, what in (
        ("rope.freq_base_swa", "theta of layers with a window"),
        ("rope.dimension_count_swa", "features that turn in layers with a window"),
        ("attention.head_count_kv", "a number, or one a layer"),
        ("attention.key_length", "features of a head"),
        ("attention.value_length", "the same as keys, unless there are latents"),
        ("attention.key_length_mla", "of DeepSeek's latents"),
        ("attention.value_length_mla", "of DeepSeek's latents"),
        ("attention.key_length_swa", "of Gemma 4's layers with a window"),
        ("attention.q_lora_rank", "width of a query's latents"),
        ("attention.kv_lora_rank", "width of latents"),
        ("attention.scale", "of scores (Granite)"),
        ("attention.temperature_scale", "of queries far from the beginning (Mistral)"),
        ("attention.shared_kv_layers", "layers that read the keys of others (Gemma)"),
        ("attention.sliding_window", "how far a token sees"),
        ("attention.sliding_window_pattern", "which layers have a window: a period or a list"),
        ("attn_logit_softcapping", "a bound on scores (Gemma 2)"),
        ("final_logit_softcapping", "a bound on logits"),
        ("expert_count", "experts of a layer"),
        ("expert_used_count", "experts of a token"),
        ("expert_feed_forward_length", "an expert's width"),
        ("expert_shared_count", "experts that all tokens share"),
        ("expert_shared_feed_forward_length", "the width of what all tokens share"),
        ("expert_weights_norm", "whether weights sum to one"),
        ("expert_weights_scale", "a factor on weights"),
        ("expert_gating_func", "1 softmax, 2 sigmoid; any other is refused"),
        ("expert_group_count", "groups of experts"),
        ("expert_group_used_count", "groups of a token"),
        ("leading_dense_block_count", "first layers without experts"),
    )),
)  # fmt: skip
"""An architecture's own keys. Trials: logits, or the models of transformers written as GGUF."""

LINES = (*FILE, *TOKENS, *GENERATION, *NUMBERS)


def rendered() -> str:
    """The table of GGUF's keys in docs/internals/folders.md."""
    lines = ["| key | | what it is |", "|---|---|---|"]
    keys = ((f"ARCH{line.key}" if line.key[0] == "." else line.key, line) for line in LINES)
    lines += [f"| `{key}` | {line.does} | {line.meaning} |" for key, line in keys]
    return "\n".join(lines) + "\n"
