"""Record the token ids that llama.cpp, the reference for GGUF, gives for a corpus of awkward texts.

The tests compare ours with the recording, so that they need no llama.cpp. To record anew:

    pip install llama-cpp-python        # in an environment of its own
    python dev/make_token_fixtures.py MODEL.gguf tests/text/fixtures/token_ids_<name>.json
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

TEXTS = (
    "",
    " ",
    "  ",
    "   \t ",
    "\n",
    "\n\n",
    "\n\n\n\n",
    "\r\n",
    "\t\t",
    " \n  \n\t\n ",
    "trailing spaces   ",
    "   leading spaces",
    "one  two   three    four",
    "tab\tseparated\tvalues\t\t",
    "Hello, world!",
    " Hello",
    "The capital of France is",
    "It's what they'll've said; I'd say we're SURE'S 'tis DON'T can’t",
    "ALLCAPS camelCase PascalCase snake_case kebab-case dotted.name",
    "antidisestablishmentarianism Donaudampfschifffahrtsgesellschaftskapitänsmütze",
    "a" * 200,
    "ab" * 100,
    "0",
    "7",
    "42",
    "123",
    "1234567890",
    "3.14159265358979",
    "1,234,567.89",
    "2024-11-21T06:44:05Z",
    "0x1F 1e-10 10^6 ½ ² Ⅷ ٣٤٥ १२३ 一二三",
    "a1b22c333d4444",
    " 1 22 333 4444",
    "def f(x: int) -> int:\n    return x ** 2  # squared\n\n\nprint(f(12))\n",
    'for (int i = 0; i < n; ++i) {\n\tprintf("%d\\n", a[i]);\n}\n',
    '{"name": "value", "list": [1, 2.5, null, true], "nested": {"k": "ü"}}',
    '<div class="a b"><p>text &amp; more</p></div><!-- note -->',
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%';",
    "https://example.org/path?query=1&other=%20#part user@example.org",
    "$x_{i+1} = \\frac{1}{2} \\sum_{j=0}^{n} \\alpha_j$",
    "!!! ??? ... --- *** ### @@@ $$$ %%% ^^^ &&& ((( )))",
    "“quoted” ‘single’ «guillemets» — dash – en … ellipsis • bullet",
    "Die Äpfel schmecken süß. Größe, Maß, ẞ",
    "Ça va très bien, garçon; où est l'élève? Œuvre",
    "El niño comió piñas. ¿Qué? ¡Sí!",
    "Привет, мир! Съешь ещё этих мягких булок.",
    "Γειά σου Κόσμε, ΐ ΰ",
    "你好，世界！今天天气怎么样？",
    "吾輩は猫である。名前はまだ無い。カタカナ ﾊﾝｶｸ",
    "안녕하세요 세계 ㅋㅋㅋ",
    "مرحبا بالعالم، كيف حالك؟ اَلْعَرَبِيَّةُ",
    "שלום עולם, מה שלומך?",
    "สวัสดีชาวโลก นี่คือการทดสอบ",
    "नमस्ते दुनिया, यह एक परीक्षण है।",
    "வணக்கம் உலகம் ਸਤ ਸ੍ਰੀ ਅਕਾਲ",
    "🙂",
    "🙂🙃🚀🔥💯",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ 1️⃣",
    "e\u0301 vs \u00e9, n\u0303 vs \u00f1, \ufb01 ligature, \u212b",
    "zero\u200bwidth \u200djoiner soft\u00adhyphen nb\u00a0space \u3000wide \u2028line \ufeffbom",
    "\u0085next \u000bvertical \u000cform \u001fcontrol \u007fdelete",
    "𝓜𝓪𝓽𝓱 𝔸𝔹ℂ 𐍈 𒀀 \U0010ffff \uffff",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|><|endoftext|>",
    "text<|endoftext|>text <|endoftext|> text",
    "almost <|im_start| > <im_start> <|IM_START|> |im_end|> <|im_",
    '<tool_call>\n{"name": "f"}\n</tool_call> <|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>',
    "<repo_name>x<file_sep>y<gh_stars>10<filename>",
    "<s>not special here</s> [INST] <unk> <0x0A>",
    "Ġ Ċ ĉ ▁ Â¤ those are how bytes are written",
)
PARTS = (
    *" \t\n\r'\".,:;!?-_/\\|<>()[]{}=+*&^%$#@~`",
    *"abcdeXYZ0123456789äßéñøаяжλعربไทยकि中文日本語한국🙂🚀\u200d\u00a0\u3000\u0301½²",
    *(
        "  ",
        "    ",
        "\n\n",
        "'s",
        "'LL",
        "'re",
        " the",
        "ing",
        "tion",
        "123",
        "<|im_start|>",
        "<|im_end|>",
    ),
)


def corpus(num_random: int = 150, seed: int = 0) -> list[str]:
    """The texts above, then random mixtures, the same every time."""
    rng = random.Random(seed)
    mixtures = ["".join(rng.choices(PARTS, k=rng.randint(2, 30))) for _ in range(num_random)]
    return [*TEXTS, *mixtures]


def main() -> None:
    """Tokenize the corpus and write the recording."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="a GGUF; only its vocabulary is read")
    parser.add_argument("output", type=Path, help="the JSON file to write")
    arguments = parser.parse_args()
    import llama_cpp

    model = llama_cpp.Llama(str(arguments.model), vocab_only=True, verbose=False)
    cases = [
        {"text": text, "ids": model.tokenize(text.encode(), add_bos=False, special=True)}
        for text in corpus()
    ]
    head = {"model": arguments.model.name, "reference": f"llama-cpp-python {llama_cpp.__version__}"}
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    opening = json.dumps(head)[:-1]
    arguments.output.write_text(f'{opening}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(cases)} texts, {sum(len(case['ids']) for case in cases)} ids: {arguments.output}")


if __name__ == "__main__":
    main()
