"""The tokenizer under Hugging Face's names says what Hugging Face's says."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from forerun.core.errors import RequestError
from forerun.text.user_tokenizer import UserTokenizer
from tests.weights.files import texts
from tests.weights.test_hf import ENCODERS, tokenizer_of

SETTINGS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}{{ mood }}"
)
MESSAGES = [{"role": "user", "content": "hello world"}]


@pytest.fixture
def both(tmp_path: Path) -> tuple[UserTokenizer, transformers.PreTrainedTokenizerFast]:
    library = transformers.PreTrainedTokenizerFast(
        tokenizer_object=ENCODERS["sentencepiece"](), chat_template=TEMPLATE, **SETTINGS
    )
    files = {"tokenizer_config__json": SETTINGS | {"chat_template": TEMPLATE}}
    return UserTokenizer(tokenizer_of(tmp_path / "m", "sentencepiece", **files)), library


def test_ids_and_texts_are_those_of_transformers(both) -> None:
    ours, library = both
    for text in texts():
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == library.encode(text, add_special_tokens=special)
            for skip in (True, False):
                expected = library.decode(ids, skip_special_tokens=skip)
                assert ours.decode(ids, skip_special_tokens=skip).strip() == expected.strip()
    assert ours.batch_decode([[1], [2]]) == ["<s>", "</s>"]
    assert ours("hello world")["input_ids"] == library("hello world")["input_ids"]
    assert (ours.eos_token_id, ours.eos_token) == (library.eos_token_id, library.eos_token)
    assert (ours.bos_token_id, len(ours)) == (library.bos_token_id, len(library))


@pytest.mark.parametrize("settings", [{}, {"add_generation_prompt": True, "mood": "!"}])
def test_conversations_are_those_of_transformers(both, settings: dict[str, object]) -> None:
    ours, library = both
    settings = {"mood": "", **settings}
    for tokenize in (True, False):
        for conversation in (MESSAGES, [MESSAGES, MESSAGES]):
            made = ours.apply_chat_template(conversation, tokenize=tokenize, **settings)
            expected = library.apply_chat_template(
                conversation, tokenize=tokenize, return_dict=False, **settings
            )
            assert made == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.encode("x", add_special_token=False), "did you mean 'add_special_tokens'"),
        (lambda t: t("x", truncation=True), "truncation=True is not supported"),
        (lambda t: t("x", return_tensors="tf"), "unknown kind of tensors 'tf'"),
        (lambda t: t(["x", "yy"], return_tensors="pt"), "give one text"),
        (lambda t: t.apply_chat_template(MESSAGES, add_generation_promt=True), "did you mean 'add"),
        (lambda t: t.apply_chat_template(MESSAGES, documents=["x"]), "documents=.* not supported"),
    ],
)
def test_what_it_cannot_do_is_said(both, call, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call(both[0])
