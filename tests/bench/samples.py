"""Measurements with chosen figures, and a byte tokenizer, for the tests of the benchmark."""

from __future__ import annotations

from forerun.bench.prices import Prices
from forerun.bench.record import Measurement

ORIGIN = {"model": "tiny", "quant": "F32", "task": "toy", "threads": 1, "temperature": 0}


def measured(contender: str, unit: str, decode_s: float, **fields: object) -> Measurement:
    """Ten decoded tokens in `decode_s` seconds, in category `unit[0]`."""
    given: dict[str, object] = {
        "category": unit[0],
        "round": 0,
        "num_prompts": 1,
        "token_ids": (tuple(range(11)),),
        "decode_tokens": 10,
        "prefill_s": 0.5,
        "decode_s": decode_s,
        "ttft_s": (0.5,),
        "passes": 10,
        "emitted": 10,
        "peak_rss_mb": 1.0,
    }
    return Measurement(contender, unit, **{**given, **fields})  # type: ignore[arg-type]


class Bytes:
    """A tokenizer whose ids are bytes."""

    adds_space = False

    def is_special(self, token_id: int) -> bool:
        return False

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def prices(ms: dict[int, float], peer: str | None = None) -> Prices:
    """Pass costs of the model of `ORIGIN`."""
    known = {} if peer else {"bandwidth_gb_s": 10.0, "weights_mb": 20.0, "mflop_row": 40.0}
    return Prices(ORIGIN, ms, peer, **known)
