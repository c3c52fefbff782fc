"""What no card, no triton, too old a card and a family that is not built are told: one line that names the CPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from forerun.core.errors import LoadError
from forerun.model.backends import triton as backend
from forerun.model.loader import choose_backend
from tests.native.models import KINDS

NOT_BUILT = {
    **dict.fromkeys(("per layer", "streams", "float streams"), "per-layer embeddings"),
    **dict.fromkeys(("hybrid", "tiled", "short", "alone"), "recurrent layers"),
    **dict.fromkeys(("latent", "latents"), "attention to latents"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_not_built_is_refused_by_name(kind: str) -> None:
    reason = backend.not_built(KINDS[kind][0])
    if kind not in NOT_BUILT:
        assert reason is None
    else:
        assert NOT_BUILT[kind] in reason
        assert reason.endswith("use --device cpu")


def refusal(kind: str, **options: bool) -> str:
    with pytest.raises(LoadError) as error:
        choose_backend(KINDS[kind][0], "cuda:1", **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_without_triton_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "extra gpu" in refusal("q4")
    assert "--device cpu" in refusal("q4")


def test_without_a_card_a_model_can_be_planned_and_not_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    assert choose_backend(KINDS["q4"][0], "cuda").__name__ == backend.__name__
    assert "CUDA devices; use --device cpu" in refusal("q4", must_be_here=True)


def test_too_old_a_card_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from forerun.gpu import devices

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla T4")
    assert (
        devices.absent("cuda")
        == "Tesla T4 has compute capability 7.5, 8.0 is needed; use --device cpu"
    )
    assert "sees 1 CUDA devices" in devices.absent("cuda:1")
