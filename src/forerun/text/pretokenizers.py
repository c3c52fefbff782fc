"""How a GGUF's byte-level BPE cuts text into words: by the name in `tokenizer.ggml.pre`.

The file names the rule and does not hold it. Each rule is a row of regular expressions: every one
cuts the pieces that the one before left, into its matches and what lies between them. They are
those of llama.cpp, the reference for this format, spelled for the `tokenizers` library; some differ
from the model's own tokenizer.json, and so do the ids of rare texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from forerun.core.errors import LoadError, unknown

_DIGIT = r"\p{N}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SUFFIX = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_QWEN2 = rf"(?:{_SUFFIX})|{_WORD}|\p{{N}}|{_OTHER}|{_SPACES}"
_LLAMA3 = rf"(?:{_SUFFIX})|{_WORD}|\p{{N}}{{1,3}}|{_OTHER}|{_SPACES}"
# Words that begin at a capital: any letters but a-z, then any but A-Z.
_UPPER, _LOWER = r"((?=\p{L})[^a-z])", r"((?=\p{L})[^A-Z])"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_CAMEL_A, _CAMEL_B = f"{_BEFORE}{_UPPER}*{_LOWER}+", f"{_BEFORE}{_UPPER}+{_LOWER}*"
_OTHER_OR_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CAMEL_A}|{_CAMEL_B}|\p{{N}}|{_OTHER_OR_SLASH}|{_SPACES}"
_GPT4O = (
    rf"{_CAMEL_A}(?:{_SUFFIX})?|{_CAMEL_B}(?:{_SUFFIX})?|\p{{N}}{{1,3}}|{_OTHER_OR_SLASH}|{_SPACES}"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The expressions in the order they cut; what else the name implies.

    `whole_words` takes a word that is a token as it is, without merging; `adds_bos` is what holds
    where the file does not say.
    """

    cuts: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return the cuts, then bytes as visible characters."""
        splits = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in self.cuts]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, byte_level])


_RULES: Mapping[PreTokenizer, str] = {
    PreTokenizer((_GPT2,)): "gpt-2 phi-2 mpt olmo jais gigachat mellum exaone4 trillion",
    PreTokenizer((_DIGIT, _GPT2)): "smollm starcoder refact command-r codeshell exaone minerva-7b",
    PreTokenizer((_QWEN2,)): "qwen2 stablelm2 deepseek-r1-qwen hunyuan megrez",
    PreTokenizer((_LLAMA3,)): "dbrx smaug-bpe chatglm-bpe",
    PreTokenizer((_LLAMA3,), whole_words=True): "glm4",
    PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2"
    ),
    PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True): "tekken",
    PreTokenizer((_GPT4O,)): "gpt-4o llama4",
    PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)): "deepseek-v3 hunyuan-dense",
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")): "falcon",
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): "default",
}
_BY_NAME: Mapping[str, PreTokenizer] = {
    name: rule for rule, names in _RULES.items() for name in names.split()
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the rule of that name. Raises LoadError."""
    if name not in _BY_NAME:
        raise LoadError(unknown("pre-tokenizer", name, _BY_NAME))
    return _BY_NAME[name]
