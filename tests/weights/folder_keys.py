"""What each file and key of a model's folder means: the table of docs/internals/folders.md, each line with a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

READ, IDLE, REFUSED = "read", "no effect", "refused"
FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}


def token(content: str, *, special: bool = True, **flags: bool) -> dict[str, Any]:
    """A token as an object."""
    return {"content": content, "special": special, **FLAGS, **flags}


@dataclass(frozen=True)
class Line:
    """What we do with a key, and a folder's files that show it: each is merged into what the plain folder has.

    `beside` are files of the folder that it is compared with.
    """

    file: str
    key: str
    does: Literal["read", "no effect", "refused"]
    meaning: str
    files: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    complaint: str = ""


CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
BOS = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<|im_end|>": {"id": "<|im_end|>", "ids": [264], "tokens": ["<|im_end|>"]}},
}
CUT = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
PAD = {"strategy": {"Fixed": 9}, "direction": "Left", "pad_id": 0, "pad_type_id": 0}
PAD |= {"pad_token": "!", "pad_to_multiple_of": None}
LISTED = {CONFIG: {"added_tokens_decoder": {"300": token("<|user|>")}}}


def setting(key: str, does: Any, meaning: str, value: object, **others: Any) -> Line:
    """A key of tokenizer_config.json."""
    return Line(CONFIG, key, does, meaning, {CONFIG: {key: value, **others}})


TOKENS = (
    Line(
        "tokenizer.json",
        "truncation",
        IDLE,
        "what a training cut texts to",
        {"tokenizer.json": {"truncation": CUT}},
    ),
    Line(
        "tokenizer.json",
        "padding",
        IDLE,
        "what a training filled texts up to",
        {"tokenizer.json": {"padding": PAD}},
    ),
    Line(
        "tokenizer.json",
        "post_processor",
        READ,
        "the tokens before and behind a text",
        {"tokenizer.json": {"post_processor": BOS}},
    ),
    Line(
        CONFIG,
        "added_tokens_decoder",
        READ,
        "tokens with their flags, besides tokenizer.json's",
        {
            CONFIG: {
                "added_tokens_decoder": {
                    "266": token("<x>", special=False, lstrip=True, rstrip=True),
                    "300": token("<|user|>"),
                }
            }
        },
    ),
    setting("eos_token", READ, "a special token, in texts too; so are all `*_token`", "he"),
    setting("image_token", READ, "a special token under any name", "<x>"),
    setting("extra_special_tokens", READ, "more special tokens", ["<|user|>", "<x>"]),
    setting("additional_special_tokens", READ, "the older name of these", ["<|user|>"]),
    setting("split_special_tokens", READ, "true: special tokens in texts are letters", True),
    setting(
        "add_bos_token",
        IDLE,
        "tokenizer.json's post-processing decides",
        True,
        bos_token="<|im_end|>",
    ),
    setting("add_eos_token", IDLE, "the same", True, eos_token="<|im_end|>"),
    setting("add_prefix_space", IDLE, "tokenizer.json's pre-tokenizer decides", True),
    setting("legacy", IDLE, "of tokenizers that are made of tokenizer.model", False),
    setting("model_max_length", IDLE, "config.json has the context", 4),
    setting("max_length", IDLE, "of a training", 3, stride=1, truncation_strategy="longest_first"),
    setting("truncation_side", IDLE, "nothing is cut", "left"),
    setting("padding_side", IDLE, "nothing is filled up", "left"),
    setting("clean_up_tokenization_spaces", IDLE, "text is that of the tokens", True),
    Line(
        MAP,
        "additional_special_tokens",
        READ,
        "special tokens of older folders",
        {MAP: {"additional_special_tokens": ["<|user|>", "<x>"]}},
    ),
    Line(MAP, "pad_token", READ, "a special token", {MAP: {"pad_token": "<x>"}}),
    Line(
        MAP,
        "beside added_tokens_decoder",
        IDLE,
        "which newer folders have",
        {MAP: {"pad_token": "<x>"}, **LISTED},
        LISTED,
    ),
    Line(ADDED, "all", READ, "older folders' added tokens", {ADDED: {"<x>": 267, "<|user|>": 268}}),
    Line(
        ADDED,
        "beside added_tokens_decoder",
        IDLE,
        "which newer folders have",
        {ADDED: {"<x>": 300}, **LISTED},
        LISTED,
    ),
    Line(
        "preprocessor_config.json",
        "all",
        IDLE,
        "of pictures and sounds",
        {"preprocessor_config.json": {"do_resize": True}},
    ),
)
"""What decides on token ids. Trials: transformers' ids and texts; the plain folder's where a key has no effect."""

LORA = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
WEIGHTS = "model.safetensors"
FILES = (
    Line(WEIGHTS, "", READ, "the weights, whatever an index next to it says"),
    Line(
        "gptq_model-4bit-128g.safetensors",
        "",
        READ,
        "any other name, if it is the only such file",
        {WEIGHTS: None, "gptq_model-4bit-128g.safetensors": {}},
    ),
    Line(
        "pytorch_model.bin",
        "",
        REFUSED,
        "it can run code when it is read",
        {WEIGHTS: None, "pytorch_model.bin": {}},
        complaint="pytorch_model.bin, which can run code",
    ),
    Line(
        "adapter_model.safetensors",
        "",
        REFUSED,
        "with adapter_config.json beside a model, unless it adds zeros",
        {"adapter_config.json": LORA, "adapter_model.safetensors": {}},
        complaint="has an adapter .LORA. beside the model",
    ),
    Line(
        "adapter_config.json",
        "",
        REFUSED,
        "alone: it is not a model",
        {"config.json": None, "adapter_config.json": LORA},
        complaint="is an adapter .LORA. of org/base, no model",
    ),
    Line(
        "tokenizer.model, vocab.json, merges.txt",
        "",
        REFUSED,
        "without tokenizer.json: transformers makes it",
        {"tokenizer.json": None, "vocab.json": {}, "tokenizer.model": {}},
        complaint="has no tokenizer.json: save one",
    ),
    Line(
        "any file",
        "a pointer of git-lfs",
        REFUSED,
        "`git lfs pull` fetches the file",
        {"config.json": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"},
        complaint="is a git-lfs pointer",
    ),
)
TEMPLATES = (
    Line("chat_template.jinja", "", READ, "the chat template; it comes first"),
    Line("additional_chat_templates/", "tool_use.jinja", READ, "the one for chats with tools"),
    Line(CONFIG, "chat_template", READ, "a text, or a list of `name` and `template`"),
    Line("chat_template.json", "chat_template", READ, "as processors of older folders have it"),
)
"""Held by the tests of chat templates in test_hf.py."""
GENERATION = (
    Line("generation_config.json", "eos_token_id", READ, "a token or a list that ends answers"),
    Line(
        "generation_config.json",
        "temperature, top_k, top_p, min_p, do_sample",
        READ,
        "sampling",
    ),
    Line("generation_config.json", "repetition_penalty", READ, "sampling"),
    Line(
        "generation_config.json",
        "suppress_tokens, bad_words_ids, num_beams, ...",
        IDLE,
        "named in the log",
    ),
)
"""Held by tests/text/test_generation.py and test_hf.py."""
CONFIG_KEYS = (
    Line("config.json", "torch_dtype", IDLE, "weights are as they are stored", {"torch_dtype": 1}),
    Line("config.json", "dtype", IDLE, "the newer name", {"dtype": "float16"}),
    Line("config.json", "use_cache", IDLE, "there is always a cache", {"use_cache": False}),
    Line("config.json", "pad_token_id", IDLE, "nothing is filled up", {"pad_token_id": 5}),
    Line(
        "config.json",
        "rope_theta",
        READ,
        "older files have it outside `rope_parameters`",
        {"rope_parameters": None, "rope_theta": 50.0},
    ),
    Line(
        "config.json",
        "rope_parameters",
        READ,
        "before `rope_theta` and `rope_scaling`",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    ),
    Line(
        "config.json",
        "rope_scaling",
        READ,
        "the older name, with `type` or `rope_type`",
        {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 3.0}},
    ),
    Line("config.json", "tie_word_embeddings", READ, "absent: the family's usual"),
)  # fmt: skip
"""Trials: the logits of transformers' model of that config. The last one is held by test_oddities.py."""
LINES = (*TOKENS, *TEMPLATES, *GENERATION, *CONFIG_KEYS, *FILES)

KEPT = {
    "tokenizer.json": "copied",
    CONFIG: "copied",
    MAP: "copied",
    ADDED: "copied",
    "chat_template.jinja": "copied",
    "additional_chat_templates/tool_use.jinja": "copied",
    "generation_config.json": "copied",
    "preprocessor_config.json": "copied",
    "config.json": "made anew",
    "model.safetensors": "made anew",
    "quantize_config.json": "left out",
    "hf_quant_config.json": "left out",
    "adapter_config.json": "left out",
    "adapter_model.safetensors": "left out",
    "pytorch_model.bin": "left out",
}
"""What `forerun quantize` does with the files of a folder."""


def rendered() -> str:
    """The tables of docs/internals/folders.md."""
    lines = ["| file | key | | what it is |", "|---|---|---|---|"]
    lines += [
        f"| `{line.file}` | {_code(line.key)} | {line.does} | {line.meaning} |" for line in LINES
    ]
    kept = ["| file | `quantize` |", "|---|---|"]
    kept += [f"| `{name}` | {what} |" for name, what in KEPT.items()]
    return "\n".join([*lines, "", *kept]) + "\n"


def _code(keys: str) -> str:
    is_code = keys and " " not in keys.replace(", ", ",")
    return ", ".join(f"`{key}`" for key in keys.split(", ")) if is_code else keys
