"""What ends an answer: what transformers ends at by generation_config.json, and llama.cpp by the tokens of a GGUF.

`fixtures/ends.json` names for each model its control tokens (those that matter), the ends in its generation_config.json
(else its tokenizer's), and what llama.cpp (that of llama-cpp-python 0.3.36) puts into `special_eog_ids`. `also` are
ends of ours beyond both: the tokens before a file's name, of models that fill in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from forerun.text.ends import end_ids
from forerun.text.fill_in import FillIn

MODELS = json.loads((Path(__file__).parent / "fixtures" / "ends.json").read_text(encoding="utf-8"))


def ends(tokens: str, named: set[str]) -> set[str]:
    """Return the ends among some tokens, of which the model's files name some."""
    ids = {text: i for i, text in enumerate(tokens.split())}
    found = end_ids(ids.get, [*map(ids.get, named), None], FillIn.find(ids.get))
    return {text for text, i in ids.items() if i in found}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model["model"]))
def test_an_answer_ends_where_transformers_and_llama_cpp_end(model: Mapping[str, str]) -> None:
    of_config, of_gguf = {*model["transformers"].split()}, {*model["llama.cpp"].split()}
    also = {*model.get("also", "").split()}
    assert ends(model["tokens"], of_config) == of_config | of_gguf | also
    assert ends(model["tokens"], of_config & of_gguf) == of_gguf | also  # what the file names


def test_a_message_that_others_follow_is_no_end_even_if_it_is_named() -> None:
    tokens = "<|end|> <|return|> <|call|>"
    assert ends(tokens, {"<|end|>", "<|return|>"}) == {"<|return|>", "<|call|>"}


def test_what_gemma_writes_in_html_is_no_end() -> None:
    tokens = "<pad> <eos> <bos> <start_of_turn> <end_of_turn> <table> <s> </s>"
    assert ends(tokens, {"<eos>", "<end_of_turn>"}) == {"<eos>", "<end_of_turn>"}
    assert ends(tokens, {"<eos>"}) == {"<eos>", "<end_of_turn>"}  # as a GGUF names


def test_an_end_may_look_like_any_token() -> None:
    assert ends("<|user|> <|observation|>", {"<|user|>"}) == {"<|user|>"}
