"""What ends an answer: what transformers ends at by generation_config.json, and llama.cpp by the tokens of a GGUF."""

from __future__ import annotations

import pytest

from forerun.text.ends import end_ids
from forerun.text.fill_in import FillIn

HARMONY = (
    "<|start|> <|end|> <|message|> <|channel|> <|constrain|> <|return|> <|call|> <|endoftext|>"
)
FILLS = "<|fim_prefix|> <|fim_suffix|> <|fim_middle|> <|fim_pad|> <|file_sep|> <|repo_name|>"


@pytest.mark.parametrize(
    ("named", "tokens", "ends"),
    [  # what the files name, control tokens, ends
        ("<|return|>", HARMONY, "<|return|> <|call|> <|endoftext|>"),
        ("<|return|> <|end|>", HARMONY, "<|return|> <|call|> <|endoftext|>"),
        ("<|flush|>", "<|end|> <|flush|> <|calls|>", "<|flush|> <|calls|>"),
        ("<|endoftext|>", "<|endoftext|> <|user|> <|end|> <|assistant|>", "<|endoftext|> <|end|>"),
        ("<turn|>", "<eos> <|turn> <turn|> <|tool_response> </s>", "<eos> <turn|> <|tool_response>"),
        ("<eos>", "<eos> <start_of_turn> <end_of_turn>", "<eos> <end_of_turn>"),
        ("</s>", "<s> </s> [INST] [/INST]", "</s>"),
        ("<|end_of_text|>", "<|end_of_text|> <|eot_id|> <|eom_id|>", "<|end_of_text|> <|eot_id|> <|eom_id|>"),
        ("<|endoftext|>", f"{FILLS} <|endoftext|> <|im_end|>",
         "<|endoftext|> <|im_end|> <|fim_pad|> <|file_sep|> <|repo_name|>"),
        ("<|endoftext|>", "<|endoftext|> <|file_sep|>", "<|endoftext|>"),
        ("<|user|>", "<|user|> <|observation|>", "<|user|>"),
        ("[EOS]", "[EOS] [EOT] <|im_end|>", "[EOS] [EOT] <|im_end|>"),
    ],
)  # fmt: skip
def test_an_answer_ends_where_its_family_ends(named: str, tokens: str, ends: str) -> None:
    ids = {text: i for i, text in enumerate(tokens.split())}
    found = end_ids(ids.get, [*map(ids.get, named.split()), None], FillIn.find(ids.get))
    assert {text for text, i in ids.items() if i in found} == {*ends.split()}
