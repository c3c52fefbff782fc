"""A network of the tutorial: one file, read and refused as those that ship are."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from forerun.core.errors import LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.find import find
from forerun.drafters.base.networks.folder import write
from forerun.drafters.base.spec import DrafterSpec
from tests.drafters.helpers import BIGRAM, SAMPLED, WANTED, refusal
from tests.engine.harness import complete, engine_for
from tests.tiny import tiny_model

VOCAB, RANK = 24, 8
PROMPTS = [[3, 5, 7, 9], [1, 4]]
TARGET = Target(tiny_model(3, sharpness=3.0), None, max_num_seqs=4, max_len=256)
CONFIG = {"model_type": "bigram", "vocab_size": VOCAB, "rank": RANK}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "bigram.py"
    path.write_text(BIGRAM)
    return path


@pytest.fixture
def module(source: Path) -> ModuleType:
    return find(str(source))


def folder(path: Path, **changes: object) -> str:
    normal = np.random.default_rng(1).standard_normal
    names = ("table.weight", "head.0.weight")
    tensors = {name: normal((VOCAB, RANK), np.float32) for name in names}
    write(path, CONFIG | changes, tensors)
    return str(path)


@pytest.mark.parametrize("params", [WANTED, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("others", ["", "recycling:table=none++"])
def test_it_changes_no_token(source, tmp_path, params, others):
    spec = f"{others}{source}:model={folder(tmp_path / 'network')},min_chance=0"
    drafter = DrafterSpec.of(spec).build(TARGET)
    expected = complete(engine_for(TARGET.model, None), PROMPTS, params)
    engine = engine_for(TARGET.model, drafter)
    found = complete(engine, PROMPTS, params)
    assert [run.seq.generated for run in found] == [run.seq.generated for run in expected]
    assert engine.stats.drafter_errors == 0
    assert engine.stats.drafted > engine.stats.accepted > 0


def test_the_likeliest_by_its_matrices_is_guessed_first(module, tmp_path):
    network = module.build(module.Options(model=folder(tmp_path / "n"), num_draft=1), TARGET)
    seq = complete(engine_for(TARGET.model, None), PROMPTS[:1], WANTED)[0].seq
    (draft,) = network.propose([seq], [1])
    assert draft.tokens == (int(np.argmax(network.head @ network.table[seq.tokens[-1]])),)


def test_a_list_cuts_its_head(module, tmp_path):
    options = module.Options(model=folder(tmp_path / "n"), draft_vocab="5")
    network = module.build(options, TARGET)
    assert network.head.shape == (5, RANK)
    assert network.after(3).tokens.tolist() == [0, 1, 2, 3, 4]


def test_what_does_not_fit_is_told(module, tmp_path):
    with pytest.raises(LoadError, match="holds 'llama', which is not a bigram; allowed: bigram"):
        module.Options(model=folder(tmp_path / "a", model_type="llama"))
    other = module.Options(model=folder(tmp_path / "b", vocab_size=25))
    message = "a vocabulary of 25, this model has 24"
    assert message in refusal(lambda: module.METHOD.check(other, TARGET))
    assert message in refusal(lambda: module.build(other, TARGET))
    wide = module.Options(model=folder(tmp_path / "c", rank=9))
    message = "tensor 'table.weight' is [24, 8], expected [24, 9]"
    assert message in refusal(lambda: module.build(wide, TARGET))
    wrong = folder(tmp_path / "d")
    config = json.loads((Path(wrong) / "config.json").read_text())
    (Path(wrong) / "config.json").write_text(json.dumps(config | {"target": {"num_layers": 99}}))
    message = "it was trained for another model, whose num layers is 99"
    assert message in refusal(lambda: module.build(module.Options(model=wrong), TARGET))
