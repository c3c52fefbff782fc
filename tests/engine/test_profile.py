"""Profiles: what is written is read back, another model or machine has another one, a broken one is as good as none."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from forerun.core.config import EngineConfig
from forerun.core.opened import SAMPLE_NBYTES, OpenedFile, digest
from forerun.engine import profile
from forerun.engine.controller import Prior
from forerun.engine.profile import Profile, Subject, choices, load
from tests.engine.test_figures import FIGURES, TIMES


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "folder", lambda: tmp_path / "profiles")
    return tmp_path / "profiles"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(bytes(range(256)) * 40)
    return path


def subject(path, on="cpu", **options):
    return Subject.of(
        path,
        [OpenedFile.now(path)],
        EngineConfig(**options),
        device=on,
        backend="Torch",
        threads=2,
    )


@pytest.fixture
def written(model):
    made = Profile(
        subject(model),
        "2026-01-01T00:00:00+00:00",
        FIGURES.drafter,
        TIMES,
        (FIGURES,),
        {"speedup": 1.5, "speedup_lo": 1.4, "speedup_hi": 1.6},
    )
    made.save()
    return made


def test_what_is_written_is_read_back(written):
    assert load(written.subject) == written
    assert [path.name for path in written.subject.path.parent.iterdir()] == [
        written.subject.path.name
    ]


def test_no_profile_is_no_news(model, caplog):
    assert load(subject(model)) is None
    assert not caplog.records


def test_another_way_of_running_has_another_profile(written, model):
    assert load(subject(model, head_bits=4)) is None
    assert load(subject(model)) == written
    assert "threads" in written.subject.setting


CHANGED = {
    "model": "m", "drafter": "none", "draft_model": "m", "device": "cuda", "backend": "torch", "quant": "int8",
    "head_bits": 4, "kv": "fp32", "controller": False, "weight_cache": False, "mmap": True,
    "program": "server", "draft_quant": "int8", "draft_options": {"num_draft": 3}, "learn": True,
}  # fmt: skip
"""Another value than the default; numbers that are not here become 3."""


@pytest.mark.parametrize("option", [field.name for field in fields(EngineConfig)])
def test_every_option_is_in_the_key_or_known_not_to_matter(model, option):
    changed = subject(model, **{option: CHANGED.get(option, 3)})
    left_out = option in profile.RESOLVED | profile.WITHOUT_EFFECT
    assert (changed.path == subject(model).path) is left_out


def test_a_profile_belongs_to_contents_not_to_a_place(written, model, tmp_path):
    moved = model.rename(tmp_path / "other.gguf")
    assert digest([OpenedFile.now(moved)]) == written.subject.model
    moved.write_bytes(moved.read_bytes() + b"!")
    assert digest([OpenedFile.now(moved)]) != written.subject.model


@pytest.mark.parametrize("place", [0, SAMPLE_NBYTES - 1, -1])
def test_the_digest_sees_both_ends(tmp_path, place):
    data = bytearray(3 * SAMPLE_NBYTES)
    path = tmp_path / "model"
    path.write_bytes(data)
    before = digest([OpenedFile.now(path)])
    data[place] = 1
    path.write_bytes(data)
    assert digest([OpenedFile.now(path)]) != before


def damaged(text: str, **changes: object) -> str:
    return json.dumps(json.loads(text) | changes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "",
        lambda text: "[]",
        lambda text: "\0\1",
        lambda text: damaged(text, version=99),
        lambda text: damaged(text, forerun="0.0.0"),
        lambda text: damaged(text, passes=[]),
        lambda text: damaged(text, passes=None),
        lambda text: damaged(text, drafters=[{}]),
        lambda text: damaged(text, measured=3),
        lambda text: text.replace('"ms": 4.0', '"ms": NaN'),
        lambda text: text.replace('"ms": 4.0', '"ms": -4.0'),
    ],
)
def test_a_broken_profile_is_ignored_with_one_line(written, caplog, damage):
    path = written.subject.path
    path.write_text(damage(path.read_text()))
    assert load(written.subject) is None
    (record,) = caplog.records
    assert "forerun autotune" in record.getMessage()
    assert len(record.getMessage().splitlines()) == 1


def test_the_prior_is_that_of_the_setting(written):
    prior = written.prior(FIGURES.drafter, 1)
    assert (prior.pass_cost, prior.nodes) == (TIMES.costs(1), FIGURES.nodes)
    assert [prior.draft_cost.predict(k) for k in range(4)] == pytest.approx(
        [0.01, 0.07 / 3, 0.11 / 3, 0.05]
    )
    assert written.prior("lookahead", 8) == Prior(TIMES.costs(8))


def test_choices_of_all_machines_are_listed(written, model):
    other = replace(written, subject=subject(model, "cuda"), drafter="none")
    other.save()
    (written.subject.path.parent / f"x-{written.subject.model}-y.json").write_text("broken")
    assert sorted(choices([OpenedFile.now(model)])) == sorted(["none", FIGURES.drafter])
    model.write_bytes(b"another model")
    assert choices([OpenedFile.now(model)]) == []
