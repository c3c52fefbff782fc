"""EngineConfig: the only place where an option of the engine is declared.

`LLM(...)`, the command line, tune and bench are built from it; a field's docstring is its help text. A field that
is declared with `option` is one of the command line, and lists there what other engines call it; their names are
keywords of `LLM(...)`, too. What else they have, and what it means here, stands in `forerun.compat.engine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from forerun.core import sizes, typed
from forerun.core.errors import ConfigError, check_least, unknown
from forerun.core.options import option

DEFAULT_MODEL = "smollm2-135m-instruct"
AUTO: Final = "auto"
ALL: Final = "all"
SHARED: Final = "shared"
"""What is kept of prompts on disk: everything, or the instructions that conversations share."""

Quant = Literal["none", "int8", "int4"]
Precision = Literal["auto", "fp32", "fp16", "int8", "k8v4", "int4"]
CONTAINER: Final = "cgroup"
_QUANTS = {
    "int8": "int8",
    "int4": "int4",
    **dict.fromkeys(
        (
            *("none", "gguf", "awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors"),
            *("mxfp4", "auto-round", "auto"),
        ),
        "none",
    ),
}
_PRECISIONS = {
    "auto": "auto",
    **dict.fromkeys(("fp16", "f16", "float16"), "fp16"),
    **dict.fromkeys(("fp32", "f32", "float32"), "fp32"),
    **dict.fromkeys(("int8", "q8_0"), "int8"),
    "k8v4": "k8v4",
    **dict.fromkeys(("int4", "q4_1"), "int4"),
}
"""Other engines' values, with ours."""
DRAFT_FIELDS: Final[Mapping[str, str]] = {
    "draft_model": "model",
    "num_draft": "num_draft",
    "draft_quant": "quant",
    "draft_head_bits": "head_bits",
}
"""Fields that are an option of the drafter, with the option's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What to run and how. Raises ConfigError for a number out of range; the loader checks what names mean."""

    model: str = option(DEFAULT_MODEL, "-m", "-hf", "--hf-repo", metavar="MODEL")
    """A known name, a path (GGUF or folder) or a hub name."""
    drafter: str | Mapping[str, object] = option(
        AUTO, "-d", "--spec-type", metavar="DRAFTER", group="Drafting"
    )
    """auto, none, NAME:option=value,... or several joined by ++."""
    draft_model: str | None = option(
        None, "-md", "--model-draft", "-hfd", "--hf-repo-draft", metavar="MODEL", group="Drafting"
    )
    """A smaller model, or a head, that drafts together with what -d auto is."""
    draft_quant: Quant | None = option(None, group="Drafting")
    """none, int8 or int4: round the weights of a draft model or drafting network. Does not change the answers."""
    draft_head_bits: int | None = option(None, metavar="4|8", group="Drafting")
    """4 or 8: round a draft model's output head. Does not change the answers."""
    num_draft: int | None = option(
        None, "--draft-max", "--draft", "--spec-draft-n-max", group="Drafting"
    )
    """Tokens drafted a step, at most; an option of most drafters."""
    draft_options: Mapping[str, object] = field(default_factory=dict)
    """Options of the drafter, given apart from its name."""
    min_draft: int = option(0, "--draft-min", "--spec-draft-n-min", group="Drafting")
    """A draft of fewer tokens is dropped."""
    draft_budget: int = option(63, group="Drafting")
    """Nodes a drafter may propose for a sequence in one step; its own options usually ask for fewer."""
    controller: bool = option(True, group="Drafting")
    """Draft only as much as is expected to be faster; else always in full."""
    device: str = option(AUTO, "--device-map", metavar="DEVICE")
    """auto, cpu, cuda or cuda:N."""
    quant: Quant = option(
        "none",
        "--quantization",
        values=_QUANTS,
        why="weights keep the format of the file; quant rounds them",
    )
    """int8 or int4: round the weights; none keeps them. Changes the model."""
    head_bits: int | None = option(None, metavar="4|8")
    """4 or 8: round the output head. Faster; changes the model."""
    kv: Precision = option(
        AUTO,
        *("--kv-cache-dtype", "-ctk", "--cache-type-k", "-ctv", "--cache-type-v"),
        values=_PRECISIONS,
        why="keys and values are kept as fp32, fp16, int8, k8v4 or int4",
    )
    """auto, fp32, fp16, int8, k8v4 (int8 keys, int4 values) or int4: keys and values in memory. Changes the model."""
    threads: int | None = option(None, "-t")
    """CPU threads; default: physical cores, shared out among a machine's processes of one model."""
    tensor_parallel_size: int = option(1, "-tp", group="More machines")
    """Processes that each hold a part of every layer; torchrun starts them."""
    prompt_cache: str | None = option(None, metavar="DIR|auto|all|shared")
    """Save prompts and answers (as KV cache) to a folder that all processes share. The files reveal what users write.

    shared: only the instructions that two conversations have in common. all or auto: everything, in forerun's own
    folder.
    """
    prompt_cache_size: str | int = option("8GiB", metavar="SIZE")
    """What the prompt cache may take of the disk."""
    max_model_len: int | None = option(None, "-c", "--ctx-size")
    """Tokens of prompt and answer, at most; default: the model's, up to 4096, of a server 32768 if memory allows."""
    max_num_seqs: int = option(8, "-np", "--parallel")
    """Sequences that run at once, if there is memory for their keys and values."""
    memory_budget: str | int | None = option(None, metavar="SIZE|cgroup")
    """What the process may take, such as 600MiB; cgroup: what the container allows; none: no limit."""
    is_server: bool = False
    """Whether the memory plan counts a server's threads and requests."""
    num_vectors: int = 0
    """States of texts that a server may hold for one request, which the memory plan counts."""
    prefill_chunk: int = option(256, "-b", "--batch-size", "--max-num-batched-tokens")
    """Prompt tokens read in one step, so that running sequences do not wait for a long prompt."""
    seed: int | None = None
    """Seeds the requests that have no seed of their own; none draws anew in every run."""

    def __post_init__(self) -> None:
        # A drafter itself may be given, too: `DrafterSpec.of` tells what it was.
        words = {"draft_options": "a mapping of options"}
        typed.settle(self, ConfigError, words, checked_later=("drafter",))
        counts = (
            "draft_budget",
            "threads",
            "max_num_seqs",
            "prefill_chunk",
            "tensor_parallel_size",
        )
        for name in counts:
            check_least(name, getattr(self, name), 1)
        _ = self.prompt_cache_nbytes
        if self.prompt_cache == "none":
            object.__setattr__(self, "prompt_cache", None)
        check_least("min_draft", self.min_draft, 0)
        if self.memory_budget == CONTAINER:
            from forerun.core.cgroup import container_budget

            object.__setattr__(self, "memory_budget", container_budget())
        _ = self.budget_nbytes
        if self.kv not in get_args(Precision):
            raise ConfigError(unknown("precision of keys and values", self.kv, get_args(Precision)))

    @property
    def budget_nbytes(self) -> int | None:
        """Convert `memory_budget` to bytes. Raises ConfigError for what is not a size."""
        if self.memory_budget is None:
            return None
        return _nbytes("memory_budget", self.memory_budget, "600MiB")

    @property
    def prompt_cache_nbytes(self) -> int:
        """Convert `prompt_cache_size` to bytes. Raises ConfigError for what is not a size."""
        return _nbytes("prompt_cache_size", self.prompt_cache_size, "8GiB")


def _nbytes(option: str, given: str | int, example: str) -> int:
    try:
        return sizes.parse_budget(given)
    except ValueError as error:
        raise ConfigError(
            f"{option} must be a size such as {example}, got {given!r}, which {error}",
            option=option,
        ) from error
