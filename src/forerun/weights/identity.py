"""Which published model a file is, by what its metadata, its file name and its folder say.

Nothing here proves it: callers compare vocabularies and widths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forerun.weights.base import Checkpoint

_PRECISION = re.compile(
    r"[-. ](gguf|awq|gptq|autoround|exl2|mlx|bnb|[2-68]-?bit|int[48]|(nv|mx)?fp(4|8|16|32)|bf16|f16|f32|nf4"
    r"|w[48]a(8|16)|(ud-)?i?q\d[_a-z\d]*|tq\d_\d|qat|dynamic|unsloth)$"
)
"""The last part of a name that says how the weights are stored, not which they are."""
_PART = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class Identity:
    """Names of a model, each as `plain` writes it: its own, and those of the models it was fine-tuned from."""

    names: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()


UNKNOWN = Identity()


def identity_of(checkpoint: Checkpoint) -> Identity:
    """Return the names that a GGUF's metadata, a config.json, the file and the folder give the model."""
    config, path = checkpoint.config, checkpoint.path.absolute()
    stated = [config.get("_name_or_path"), *_of_gguf(config)]
    repository = next((p.name for p in path.parents if p.name.startswith("models--")), "")
    own = [*stated, path.stem if checkpoint.kind == "gguf" else path.name]
    own.append(repository.rpartition("--")[2])
    bases = [config.get("base_model"), *_bases_of_gguf(config)]
    return Identity(_plain(own), _plain(bases))


def plain(name: str) -> str:
    """Return a model's name without its owner, its precision and the way it is written.

    >>> plain("unsloth/Meta-Llama-3.1-8B-Instruct-GGUF"), plain("Qwen3 8B-Q4_K_M")
    ('llama-3.1-8b-instruct', 'qwen3-8b')
    """
    name = name.strip().rstrip("/").rpartition("/")[2].lower()
    name = _PART.sub("", name.removesuffix(".gguf"))
    while (shorter := _PRECISION.sub("", name)) != name:
        name = shorter
    return re.sub(r"[\s_]+", "-", name).removeprefix("meta-")


def _of_gguf(config: Mapping[str, object]) -> list[object]:
    """Return `general.name`, and the name that basename, size and fine-tune make."""
    parts = [config.get(f"general.{part}") for part in ("basename", "size_label", "finetune")]
    whole = "-".join(part for part in parts if isinstance(part, str))
    return [config.get("general.name"), whole if parts[0] and parts[1] else None]


def _bases_of_gguf(config: Mapping[str, object]) -> list[object]:
    names: list[object] = []
    count = config.get("general.base_model.count")
    for i in range(min(count, 8) if isinstance(count, int) else 0):
        names += [config.get(f"general.base_model.{i}.{key}") for key in ("repo_url", "name")]
    return names


def _plain(names: Iterable[object]) -> tuple[str, ...]:
    texts = (plain(name) for name in names if isinstance(name, str) and name.strip())
    return tuple(dict.fromkeys(filter(None, texts)))
