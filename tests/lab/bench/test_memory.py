"""What is kept of the speed is counted against the same drafter with all its memory."""

from __future__ import annotations

from forerun.engine.memory import COMPONENTS, DrafterNumbers, MemoryPlan, Workload
from forerun.lab.bench import memory
from forerun.lab.bench.measurement import Measurement, Round
from forerun.lab.bench.memory import Point
from forerun.lab.bench.run import PLAIN

LOAD = Workload(num_seqs=1, max_len=64, precision="fp16", prefill_rows=16, num_blocks=1)


def plan(kv: int) -> MemoryPlan:
    components = dict.fromkeys(COMPONENTS, 10) | {"kv": kv}
    return MemoryPlan(LOAD, DrafterNumbers(name="suffix"), components, block_nbytes=kv)


def test_a_cut_takes_from_what_generating_needs_alone() -> None:
    whole = plan(960)
    assert (whole.total, whole.generation) == (1060, 1010)
    assert memory.budget_of(whole, 1010, 65) == 1060 - 656
    assert memory.budget_of(whole, 500, 50) == 50 + 250, "half of what is used"
    assert memory.budget_of(whole, 500, 0) == whole.total


def test_a_point_keeps_its_share_of_the_fastest_with_all_memory() -> None:
    points = [Point("suffix", cut, 0, plan(960)) for cut in (0.0, 65.0)]
    points += [Point("suffix", 99.0, 0, None), Point("slow", 0.0, 0, plan(960))]
    seconds = {PLAIN: 4.0, "suffix -0%": 2.0, "suffix -65%": 2.5, "slow -0%": 3.2}

    def measured(name: str) -> Measurement:
        return Measurement(
            name,
            token_ids=[[1] * 101],
            ttft_s=[0.1],
            decode_tokens=100,
            decode_s=seconds[name],
            most_blocks=int(name != "suffix -65%"),
        )

    rounds = [Round(f"{i}", "chat", 0, 1, [measured(name) for name in seconds]) for i in range(3)]
    whole, cut, impossible, slow = memory.rows(points, rounds, {"temperature": 0})
    assert (whole["kept"], whole["speedup"]) == (1.0, 2.0)
    assert (cut["kept"], cut["speedup"]) == (0.8, 1.6)
    assert cut["kept_lo"] == cut["kept_hi"] == 0.8
    assert cut["identical"] == cut["prompts"] == 3
    assert impossible["error"]
    assert slow["kept"] == 0.625, "of the fastest, not of itself"
    assert [row["used_bytes"] for row in (whole, cut)] == [1010, 50]
