"""A peer's process: answers over the pipe, noise and failures included, with adapters written by the tests."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from forerun.bench.peers import base
from forerun.bench.run import PeerError
from forerun.core.errors import ConfigError

ADAPTER = """
import itertools
print("a library that talks")
def load(model, way, num_threads, max_len):
    {load}
    def generate(prompt):
        {generate}
        return itertools.count(prompt[-1] + num_threads)
    return generate
"""


@pytest.fixture
def peer(tmp_path):
    """A contender whose environment is this one, with an adapter made of two lines."""
    (tmp_path / "toy" / "bin").mkdir(parents=True)
    python = tmp_path / "toy" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    made = []

    def make(load="pass", generate="pass"):
        path = tmp_path / "toy.py"
        path.write_text(ADAPTER.format(load=load, generate=generate))
        module = SimpleNamespace(NAME="toy", WAYS=("plain",), __file__=str(path))
        made.append(
            base.PeerContender(module, "plain", base.Setup(Path("m.gguf"), 2, 64, tmp_path))
        )
        return made[-1]

    yield make
    for contender in made:
        contender.close()


def test_a_peer_answers_with_as_many_tokens_as_asked(peer):
    contender = peer()
    contender.restart([1])
    answer = contender.answer([[5], [7]], [3, 1])
    assert answer.token_ids == [(7, 8, 9), (9,)]
    assert answer.decode_tokens == 2
    assert contender.name == "toy plain"
    assert 1 < contender.peak_rss_mb() < 200, (
        "its own memory, not that of the process that started it"
    )


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        ({"load": "raise ValueError('cannot load')"}, "ValueError: cannot load"),
        ({"load": "import no_such_library"}, "ModuleNotFoundError"),
        ({"generate": "raise RuntimeError('cannot say')"}, "RuntimeError: cannot say"),
        ({"generate": "import os; os._exit(3)"}, "exit code 3"),
    ],
)
def test_what_goes_wrong_in_the_peer_is_told(peer, adapter, reason):
    with pytest.raises(PeerError, match=reason):
        peer(**adapter).restart([1])


def test_a_peer_that_is_not_installed_says_what_to_do(peer, tmp_path):
    contender = peer()
    (tmp_path / "toy" / "bin" / "python").unlink()
    with pytest.raises(PeerError, match="make peers"):
        contender.restart([1])


def test_peers_are_found_by_name():
    assert base.adapter("llama.cpp").WAYS == ("plain", "lookup")
    with pytest.raises(ConfigError, match="did you mean 'llama"):
        base.adapter("lama.cpp")
