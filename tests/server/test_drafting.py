"""What a request says of its own drafting: it changes the speed, never a token, and is shown back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.drafters.suffix import Options, Suffix
from forerun.engine.proposer import MAX_ERRORS
from tests.server.conftest import openai_client, running

QUESTION = [{"role": "user", "content": "Write a list of ten animals."}]
OWN = {"model": "tiny", "messages": QUESTION, "max_tokens": 48, "temperature": 0}


@pytest.fixture(scope="module")
def plain(client):
    """The answer without drafting."""
    return client.chat.completions.create(extra_body={"speculative": {"drafter": "none"}}, **OWN)


def test_drafting_can_be_left_out_or_bounded(client, plain):
    assert plain.timings["drafter"] == "none"
    assert plain.timings["draft_n"] == 0
    assert plain.timings["tokens_per_pass"] == 1
    for extra in ({"speculative": {"max_draft": 2}}, {"speculative.n_max": 2}, {"max_draft": 2}):
        found = client.chat.completions.create(extra_body=extra, **OWN)
        assert found.choices[0].message.content == plain.choices[0].message.content
        assert found.timings["max_draft"] == 2
        assert 0 < found.timings["draft_n"] <= 2 * found.timings["passes"]
    named = client.chat.completions.create(
        extra_body={"speculative": {"drafter": "prompt_lookup"}}, **OWN
    )
    assert named.timings["drafter"] == "prompt_lookup"
    assert named.timings["draft_n"] > 0


@pytest.mark.parametrize("as_parts", [False, True])
def test_a_right_prediction_is_accepted(client, plain, as_parts):
    text = plain.choices[0].message.content
    content = [{"type": "text", "text": text}] if as_parts else text
    found = client.chat.completions.create(
        prediction={"type": "content", "content": content}, **OWN
    )
    assert found.choices[0].message.content == text
    details = found.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 30
    assert details.rejected_prediction_tokens == 0
    assert found.timings["tokens_per_pass"] > 4


def test_a_prediction_that_is_partly_wrong_changes_no_token(client, llm, plain):
    text = plain.choices[0].message.content
    wrong = text[:20] + " and something else entirely " + text[30:]
    for settings in ({"temperature": 0}, {"temperature": 0.9, "seed": 2}):
        params = replace(llm.default_params(), max_tokens=48, **settings)
        (expected,) = llm.chat(QUESTION, params)[0].outputs
        stream = client.chat.completions.create(
            prediction={"type": "content", "content": wrong},
            stream=True,
            stream_options={"include_usage": True},
            **OWN | settings,
        )
        *chunks, last = stream
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
        if not settings["temperature"]:
            assert last.usage.completion_tokens_details.accepted_prediction_tokens > 0
            assert last.usage.completion_tokens_details.rejected_prediction_tokens > 0


class Failing(Suffix):
    """Raises in every second proposal."""

    calls = 0

    def propose(self, seqs, budgets):
        self.calls += 1
        if self.calls % 2:
            raise RuntimeError("out of ideas")
        return super().propose(seqs, budgets)


def test_a_drafter_that_raises_ends_no_request(llm, plain, caplog):
    """Its requests go on plainly, and those that come later are answered as well."""
    broken = llm.with_drafter(Failing(Options()))
    with running(lambda: broken) as (url, _), openai_client(url) as client:
        for _ in range(MAX_ERRORS + 1):
            found = client.chat.completions.create(**OWN)
            assert found.choices[0].message.content == plain.choices[0].message.content
    assert broken.engine.stats.drafter_errors == MAX_ERRORS
    assert caplog.text.count("out of ideas; going on without drafts") == 1
