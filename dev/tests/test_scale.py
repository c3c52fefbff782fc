"""The simulator against what was measured on two cores: `dev/log`, "Replicas on Ray Serve"."""

from __future__ import annotations

import pytest

from dev.scale import Load, Replica, Service

SPEEDS = {"one": 318.6, "four": 501.4, "prompt_tok_s": 1000}
"""Tokens a second of one replica, asked by one client and by four."""
TOGETHER = 1.541
"""What two servers without Ray do on the two cores, of what one does."""
TALKS = {"new_tokens": 32, "prompt_tokens": 95, "shared_tokens": 19}
"""Tokens of a turn of what was measured (log, *Replicas again*), as the tokenizer and the template count them."""


@pytest.mark.parametrize(
    ("num", "by_prefix", "measured"),
    [(2, True, 0.691), (2, False, 0.493), (4, True, 0.68), (4, False, 0.315)],
)
def test_the_share_of_prompts_that_is_held_is_that_measured(num, by_prefix, measured):
    load = Load(**TALKS, by_prefix=by_prefix)
    found = Service(Replica.of_speeds(**SPEEDS), load, num, clients=6).run(3000)
    assert found.reused == pytest.approx(measured, rel=0.1)


def test_two_replicas_answer_as_many_requests_as_measured():
    load = Load(prompt_tokens=61, turns=(1, 1))
    replica = Replica.of_speeds(**SPEEDS)
    one = Service(replica, load, 1, clients=4).run(1000).requests_s * load.new_tokens
    two = Service(replica.slower(2 / TOGETHER), load, 2, clients=8).run(1000)
    assert one == pytest.approx(SPEEDS["four"], rel=0.02)
    assert two.requests_s * load.new_tokens == pytest.approx(727.6, rel=0.1)
