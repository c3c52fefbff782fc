"""Says what passes of several rows cost on processors that nobody has timed here, from counted instructions.

    python -m dev.row_model                         # the table of docs/installing.md
    python -m dev.row_model GB_S GHZ CORES          # AVX-512 on a machine at hand, to compare with `bench kernels`

A cell is 32 inputs, 16 outputs and a block of rows, of a file in 4 bits with a scale and a minimum a group (Q4_K). Its
instructions on the vector ports are counted in the disassembly of `kernels/linear.h`: what unpacks codes once a block,
and for each row the products, and four that turn the sum of whole numbers into floats (conversion, product of the two
scales, sum, minimum). A pass of k rows takes

    t(k) = max(bytes / B, cells k-blocks max(vector / (ports GHz), unit / (units GHz)) / cores)

Attention, norms and barriers are left out: what is printed is a bound, to be measured.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from dev.pool_model import BYTES_A_WEIGHT, SHAPES
from forerun.model.shapes import flops_per_token

ROWS = 2, 4, 8, 16, 32
CELL = 32 * 16


@dataclass(frozen=True)
class Kernels:
    """How a cell is computed: instructions on vector ports, and cycles of a unit beside them."""

    name: str
    block: int
    """Rows that share an unpacking."""
    unpack: int
    row: int
    """Of a row."""
    ports: int
    unit_row: float = 0.0
    """Cycles of the unit a row of a cell; rows of a block that are not there cost as much."""

    def cycles(self, rows: int, cores_a_unit: int = 1) -> float:
        """Return the cycles of one thread for a cell of so many rows."""
        blocks = math.ceil(rows / self.block)
        vector = (blocks * self.unpack + rows * self.row) / self.ports
        return max(vector, blocks * self.block * self.unit_row * cores_a_unit)


AVX512 = Kernels("AVX-512 VNNI", 8, 14, 12, 2)
AMX = Kernels("AMX", 16, 22, 4, 2, unit_row=1.0)
"""A product of tiles takes a cycle a row; codes go to memory and sums come from there."""
NEON = Kernels("NEON i8mm", 4, 28, 32, 4)
"""A product of 2 x 8 by 8 x 2: 16 a row, and four vectors for 16 outputs."""
SME = Kernels("SME, one unit for all cores", 16, 22, 4, 1, unit_row=1.0)
"""Not built: an outer product of 16 x 16 x 4 takes two cycles; what turns sums into floats runs on the unit, too."""


@dataclass(frozen=True)
class Machine:
    """A processor as it is rented or carried."""

    name: str
    cores: int
    ghz: float
    gb_s: float
    kernels: tuple[Kernels, ...]
    units: int = 0
    """That all cores share, 0: each has its own."""


MACHINES = (
    Machine("Sapphire Rapids, 16 cores of a socket", 16, 2.6, 85, (AVX512, AMX)),
    Machine("Granite Rapids, 16 cores of a socket", 16, 2.6, 95, (AVX512, AMX)),
    Machine("Apple M4, four large cores", 4, 4.4, 110, (NEON, SME), units=1),
)


def seconds(machine: Machine, kernels: Kernels, rows: int, model: str = "Llama-3.1-8B") -> float:
    """Return the seconds of a pass."""
    weights = flops_per_token(SHAPES[model]) / 2
    is_shared = machine.units > 0 and kernels.unit_row > 0
    share = machine.cores // machine.units if is_shared else 1
    cycles = kernels.cycles(rows, share) if not is_shared else _shared(kernels, rows, share)
    compute = weights / CELL * cycles / (machine.ghz * 1e9 * machine.cores)
    return max(weights * BYTES_A_WEIGHT / (machine.gb_s * 1e9), compute)


def _shared(kernels: Kernels, rows: int, share: int) -> float:
    """Return the cycles of a cell on a unit that computes all of it, for `share` threads in turns."""
    blocks = math.ceil(rows / kernels.block)
    own = blocks * (kernels.unpack + kernels.block * kernels.unit_row) + rows * kernels.row
    return own * share


def lines(machine: Machine) -> list[str]:
    """Return the lines of a table: v of several rows, and tokens a second of a prompt."""
    found = []
    for kernels in machine.kernels:
        one = min(seconds(machine, each, 1) for each in machine.kernels)
        costs = [f"{seconds(machine, kernels, k) / one:.2f}" for k in ROWS]
        prompt = 512 / seconds(machine, kernels, 512)
        found.append(
            f"| {machine.name} | {kernels.name} | " + " | ".join(costs) + f" | {prompt:.0f} |"
        )
    return found


def main() -> None:
    """Print the table, of the machines that are named or of one at hand."""
    machines = MACHINES
    if len(sys.argv) > 1:
        gb_s, ghz, cores = map(float, sys.argv[1:])
        machines = (Machine("here", int(cores), ghz, gb_s, (AVX512,)),)
    print("| processor | kernels | " + " | ".join(f"v({k})" for k in ROWS) + " | prompt, tok/s |")
    print("|---|---|" + "---|" * (len(ROWS) + 1))
    for machine in machines:
        print("\n".join(lines(machine)))


if __name__ == "__main__":
    main()
