"""`LLM.score`: vectors are compared, and a reranker is asked, as `/v1/rerank` of the server does."""

from __future__ import annotations

import math

import pytest

from forerun import LLM, SamplingParams
from forerun.core.errors import RequestError
from tests.server.conftest import post, running

pytest.importorskip("fastapi")
QUERY = "What is the capital of France?"
TEXTS = ["Paris is the capital of France.", "Bread is baked.", "Cats sleep."]


@pytest.fixture(scope="module")
def reranker(default_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "small-reranker.gguf"
    path.symlink_to(default_model)
    with LLM(str(path), drafter="none", threads=1, max_model_len=512) as llm:
        yield llm


def test_a_rerankers_score_is_that_of_the_servers_route(reranker):
    found = [one.outputs.score for one in reranker.score(QUERY, TEXTS)]
    assert all(0 < one < 1 for one in found)
    with running(lambda: reranker, embeddings=True) as (url, _):
        ranked = post(url, "/v1/rerank", {"query": QUERY, "documents": TEXTS})["results"]
    assert found == pytest.approx([by["relevance_score"] for by in sorted(ranked, key=index)])
    pairs = reranker.score([QUERY, QUERY], TEXTS[1:])
    assert [one.outputs.score for one in pairs] == pytest.approx(found[1:])
    assert pairs[0].prompt_token_ids != pairs[1].prompt_token_ids


def index(result):
    return result["index"]


def test_a_score_is_the_chance_of_yes_after_the_question(reranker):
    (one,) = reranker.score(QUERY, TEXTS[0])
    yes, no = (reranker.tokenizer.encode(word, bos=False)[0] for word in ("yes", "no"))
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1)
    (answer,) = reranker.generate({"prompt_token_ids": one.prompt_token_ids}, params)
    next_one = answer.outputs[0].logprobs[0]
    expected = 1 / (1 + math.exp(next_one[no].logprob - next_one[yes].logprob))
    assert one.outputs.score == pytest.approx(expected, rel=1e-4)


def test_a_query_in_the_model_cards_form_is_followed_by_the_text(reranker):
    """As vLLM's example of Qwen3-Reranker writes both."""
    head = "<|im_start|>user\n<Instruct>: Judge.\n<Query>: Is it?\n"
    tail = "<Document>: It is.<|im_end|>\n<|im_start|>assistant\n"
    (one,) = reranker.score(head, [tail])
    assert one.prompt_token_ids == reranker.tokenizer.encode(head + tail, bos=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([1, 2], "a"), "a reranker needs texts, got"),
        ((["a", "b"], ["a", "b", "c"]), "2 and 3 texts cannot be compared"),
    ],
)
def test_what_cannot_be_asked_is_refused(reranker, given, message):
    with pytest.raises(RequestError, match=message):
        reranker.score(*given)


def test_a_vllm_script_has_the_same_score_under_its_own_module(reranker):
    from forerun.compat import vllm

    with vllm.LLM(str(reranker.path), drafter="none", threads=1, max_model_len=512) as llm:
        found = llm.score(QUERY, TEXTS)
    ours = reranker.score(QUERY, TEXTS)
    assert [one.outputs.score for one in found] == [one.outputs.score for one in ours]
