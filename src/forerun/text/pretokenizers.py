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
_LINES, _GAPS = r"\s*[\r\n]+", r"\s+(?!\S)|\s+"
_SPACES = rf"{_LINES}|{_GAPS}"
_LETTERS = r"\p{L}+"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"


def _words(
    numbers: str = r"\p{N}",
    letters: str = _LETTERS,
    signs: str = rf"{_SIGNS}[\r\n]*",
    spaces: str = _SPACES,
) -> str:
    """Return the expression of Llama 3, Qwen and most after them."""
    return rf"(?:{_SUFFIX})|{_BEFORE}{letters}|{numbers}|{signs}|{spaces}"


def _camel(
    numbers: str, upper: str, lower: str, suffix: str = "", signs: str = rf"{_SIGNS}[\r\n/]*"
) -> str:
    """Return an expression for words that begin at a capital."""
    words = (rf"{_BEFORE}{case}{suffix}" for case in (f"{upper}*{lower}+", f"{upper}+{lower}*"))
    return rf"{'|'.join(words)}|{numbers}|{signs}|{_SPACES}"


_QWEN2, _LLAMA3 = _words(), _words(r"\p{N}{1,3}")
# Any letters but a-z, then any but A-Z; with marks; by the letters' categories, and without Chinese.
_PLAIN_CASE = (r"((?=\p{L})[^a-z])", r"((?=\p{L})[^A-Z])")
_MARKED_CASE = (r"((?=[\p{L}\p{M}])[^a-z])", r"((?=[\p{L}\p{M}])[^A-Z])")
_CASE = (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]")
_KIMI_CASE = (rf"[{_CASE[0]}&&[^\p{{Han}}]]", rf"[{_CASE[1]}&&[^\p{{Han}}]]")
_MAYBE_SUFFIX = f"(?:{_SUFFIX})?"
_GPT4O = _camel(r"\p{N}{1,3}", *_PLAIN_CASE, _MAYBE_SUFFIX)
_KIMI = _camel(r"\p{N}{1,3}", *_KIMI_CASE, _MAYBE_SUFFIX, rf"{_SIGNS}[\r\n]*")
_YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_THREES = r"(?<!\p{N})\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))|\p{N}{3}"
"""Threes of digits from the right. Only the first looks how many follow: a long number takes linear time."""
_BEFORE_THREES = (
    r"(?<!\d)\d{0,2}\K(?:\d{3}(?=(?:\d{3})++(?!\d))|(?=\d{3}(?!\d)))|(?<=\d{3})\d{3}(?=\d{3})"
)
"""The same, but nothing is cut behind the last three. Superbpe's own looks ahead at every digit."""

_HAN_KANA, _HAN_HANGUL = "[一-龥぀-ゟ゠-ヿ]+", "[一-龥ࠀ-一가-퟿]+"
_ASIAN = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
)
_DEEPSEEK3 = rf"{_DEEPSEEK3_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_SPARK = rf"{_DEEPSEEK3_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_GAPS}"
_CASED = (
    r"\s?[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C88}\x{2D00}-\x{2D2D}"
    r"\x{A790}-\x{AB68}\x{10570}-\x{105BC}\x{16E40}-\x{1DF1E}]]+"
)
"""Letters with an upper and a lower case, as an older Unicode had them."""
_WIDE_SIGNS = r"\s?[!-/:-~！-／：-～‘-‟　-。]+"
_PUNCTUATED = " ?[^(\\s|.,!?…。，、।۔،)]+"
_CHAMELEON = (
    *("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", _DIGIT),
    *(r"[\p{P}!-/:-@\[-`{-~]", _GPT2),
)
_RUNS = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))


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
    PreTokenizer((_GPT2,)): (
        "gpt-2 phi-2 mpt olmo jais gigachat mellum exaone4 trillion granite-docling a.x-4.0 modern-bert "
        "jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe"
    ),
    PreTokenizer((_DIGIT, _GPT2)): (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"
    ),
    PreTokenizer((_QWEN2,)): (
        "qwen2 stablelm2 deepseek-r1-qwen hunyuan megrez kormo f2llmv2 solar-open grok-2"
    ),
    PreTokenizer((_words(letters=r"[\p{L}\p{M}]+", signs=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),)): "qwen35",
    PreTokenizer((r"[^\n]+|\n+", _QWEN2)): "laguna",
    PreTokenizer((_QWEN2.removeprefix(f"(?:{_SUFFIX})|"),)): "ufakzeka",
    PreTokenizer((_words(letters=r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+", signs=rf"{_SIGNS}[\r\n/]?",
                         spaces=rf"\s*[\r\n]|{_GAPS}"),)): "exaone-moe",
    PreTokenizer((_words(spaces=rf"\s*[\r\n]|{_GAPS}"),)): "bailingmoe bailingmoe2 llada-moe",
    PreTokenizer((_words(signs=r" ?[^\s\p{L}\p{N}\r\n]+"),)): "seed-coder",
    PreTokenizer((_LLAMA3,)): "dbrx smaug-bpe chatglm-bpe",
    PreTokenizer((_LLAMA3,), whole_words=True): "glm4 glm5",
    PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0 jina-v5-nano"
    ),
    PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), whole_words=True): "minicpm5",
    PreTokenizer((_words(r"\p{N}{1,3}", spaces=rf"{_LINES}|{_RUNS}|\s"),)): "jais-2",
    PreTokenizer((_camel(r"\p{N}", *_PLAIN_CASE),), whole_words=True, adds_bos=True): "tekken",
    PreTokenizer((_GPT4O,)): "gpt-4o llama4 kanana2 talkie minimax-m2",
    PreTokenizer((_camel(r"\p{N}{1,3}", *_MARKED_CASE, _MAYBE_SUFFIX),), whole_words=True): (
        "granite-embed-multi-97m"
    ),
    PreTokenizer((_THREES, _camel(r"\p{N}{1,3}", *_CASE, _MAYBE_SUFFIX))): "tiny_aya cohere2moe",
    PreTokenizer((_YOUTU, _camel(r"\p{N}", *_CASE, _MAYBE_SUFFIX)), whole_words=True): "youtu",
    PreTokenizer((rf"\p{{Han}}+|{_KIMI}",)): "kimi-k2",
    PreTokenizer((r"[\r\n]", _CASED, _WIDE_SIGNS, r"(?<!\s)\s+$", _HAN_HANGUL, r"\p{N}+")): "deepseek-llm",
    PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}")): "deepseek-coder",
    PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3)): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _SPARK, r"\p{N}")): "spark2_5",
    PreTokenizer((_THREES, _ASIAN, _DEEPSEEK3)): "afmoe",
    PreTokenizer((r"\p{N}+", _BEFORE_THREES)): "superbpe",
    PreTokenizer((_PUNCTUATED,)): "poro-chat bloom gpt3-finnish",
    PreTokenizer((_PUNCTUATED, _DIGIT)): "viking",
    PreTokenizer(_CHAMELEON, adds_bos=True): "chameleon",
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")): "falcon",
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): "default",
}  # fmt: skip
LINES = ("gemma4", "sarvam-moe", "granite-embed-multi-311m")
"""Names of SentencePiece's BPE that stand in files of byte-level BPE."""
_BY_NAME: Mapping[str, PreTokenizer] = {
    name: rule for rule, names in _RULES.items() for name in names.split()
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the rule of that name. Raises LoadError."""
    if name not in _BY_NAME:
        raise LoadError(unknown("pre-tokenizer", name, (*_BY_NAME, *LINES)))
    return _BY_NAME[name]
