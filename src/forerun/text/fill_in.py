"""Filling in the middle of a text (FIM): the control tokens of models that were trained for it, and the prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

NAMES: Mapping[str, tuple[str, ...]] = {
    "prefix": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "▁<PRE>", "[PREFIX]",
               "<|code_prefix|>", "<|prefix|>"),
    "suffix": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "▁<SUF>", "[SUFFIX]",
               "<|code_suffix|>", "<|suffix|>"),
    "middle": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "▁<MID>", "[MIDDLE]",
               "<|code_middle|>", "<|middle|>"),
    "file": ("<|file_sep|>", "<file_sep>", "<filename>"),
    "repo": ("<|repo_name|>", "<repo_name>", "<reponame>"),
    "pad": ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<PAD>", "[PAD]"),
}  # fmt: skip
"""Names of the tokens: Qwen-Coder; StarCoder and Granite; SantaCoder; DeepSeek-Coder; Code Llama; Codestral; GLM 4.5;
Falcon-H1."""
REPOSITORY = "repository"
"""Name of a repository in the prompt where the request gives none."""


@dataclass(frozen=True, slots=True)
class FillIn:
    """The tokens that stand before the text's beginning, before its end, and where the filling begins."""

    prefix: int
    suffix: int
    middle: int
    file: int | None = None
    """Before a file's name, if the model was trained on several files in one text."""
    repo: int | None = None
    pad: int | None = None

    @classmethod
    def find(
        cls, id_of: Callable[[str], int | None], named: Mapping[str, int] = MappingProxyType({})
    ) -> FillIn | None:
        """Return a vocabulary's tokens, `named` by its file or found by their texts; None without the first three."""
        tokens = {
            what: i for what, names in NAMES.items() for i in map(id_of, names) if i is not None
        }
        tokens |= named
        if not {"prefix", "suffix", "middle"} <= tokens.keys():
            return None
        return cls(**tokens)

    def prompt(
        self,
        before: str,
        after: str,
        files: Sequence[tuple[str, str]],
        encode: Callable[[str], list[int]],
    ) -> list[int]:
        """Return the token ids of a prompt whose answer is what stands between two texts.

        `files` are the names and texts of other files.
        """
        ids: list[int] = []
        if files and self.file is not None:
            if self.repo is not None:
                ids += [self.repo, *encode(f"{REPOSITORY}\n")]
            for name, text in files:
                ids += [self.file, *encode(f"{name}\n{text}\n")]
            ids += [self.file, *encode("\n")]
        elif files:
            ids += encode("".join(f"{text}\n" for _, text in files))
        ids += [self.prefix, *encode(before), self.suffix, *encode(after), self.middle]
        return ids

    @property
    def ends(self) -> list[int]:
        """Return the tokens besides a text's end after which there is no more to fill in."""
        return [token for token in (self.file, self.repo, self.pad) if token is not None]
