"""What the kernels become for real cards, without one: python -m tests.gpu.compiled sm_80 ... prints a JSON document.

In a process of its own, as it may not interpret. Shapes are those of an 8B Llama.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from forerun.gpu import attention, kernels, placement, routing, scores
from forerun.gpu.choice import launch_of
from forerun.gpu.codes import LAYOUTS
from forerun.gpu.networks import recurrence
from forerun.gpu.numbers import LAUNCH, WIDE_LAUNCH

ROWS, BLOCK_N = 256, 32
POINTERS = {
    **dict.fromkeys(("codes", "q_codes"), "*i8"),
    **dict.fromkeys(("positions", "cache_rows", "slots", "tables", "bases", "paths", "runs", "ids", "more"), "*i32"),
    **dict.fromkeys(("lasts", "windows", "pairs", "lists", "chosen", "order", "places"), "*i32"),
}  # fmt: skip
NUMBERS = dict.fromkeys(
    (
        "eps",
        "multiplier",
        "inverse",
        "twice",
        "once",
        "divisor",
        "sum_offset",
        "scale",
        "token_weight",
    ),
    "fp32",
)
WHOLE = dict.fromkeys(
    ("R", "N", "OUT", "TABLE", "PATH", "RUNS", "V", "BLOCKS", "COUNT", "STRIDE", "K"), "i32"
)
HEADS = {"H": 32, "G": 8, "E": 128, "WIDE": 128}
MERGED = {"H": 32, "E": 128, "WIDE": 128, "ROWS": ROWS}
NORM = {
    "D": 4096,
    "X": 4096,
    "HAS_ORDER": False,
    "GROUPS": 128,
    "ROWS": ROWS,
    "HAS_NORM": True,
    "IS_LAYER": False,
    "HAS_BIAS": False,
}
CODES = {"TO_CODES": True, "TO_FLOATS": False, "ADDS": False}
TILE = {"HAS_BIAS": True, "ADDS": True, "BLOCK_M": 16, "BLOCK_N": BLOCK_N}
DENSE, OF_EXPERTS = ({"SHARE": each, "OUTPUTS": 768, "MOST": ROWS} for each in (0, 8))
ROUTED = {"NUM": 128, "WIDE": 128, "ACTIVE": 8, "IS_RENORMALIZED": True}
ROUTED |= {"GROUPS": 8, "ACTIVE_GROUPS": 4, "GROUP_BEST": 2}
FLOAT = {"K": 4096, "X": 4096, "GROUP_K": 4096, "IS_FLOAT8": False, **TILE, **DENSE}
STATE = {"PAIRS": 4, "WINDOW": 0, "HAS_CAP": False, "IS_INT8": False}
LINEAR = ("q4_1", "q4_0", "q4_z", "q4_k", "q5_k", "q6_k", "q8_0")
CACHE = {
    name: dict.fromkeys(("keys", "values"), kind)
    for name, kind in (("fp16", "*fp16"), ("int8", "*i8"))
}


ALIKE = ("sm_86", "sm_89")
"""Cards with the instructions of sm_80, for which one variant of a kernel is enough."""


def types_of(name: str) -> dict[str, str]:
    """Types of a matrix's pointers."""
    layout = LAYOUTS[name]
    return {
        "weights": "*u8" if layout.bits == 4 else "*i8",
        **dict.fromkeys(("weight_scales", "mins"), "*i8" if layout.has_factors else "*fp16"),
        **dict.fromkeys(("factors", "min_factors"), "*fp16"),
    }


def cases() -> Iterator[tuple[str, str, dict[str, Any], dict[str, str]]]:
    """Name, kernel, constants, and types of pointers that are not fp32."""
    yield "norm", "norm", NORM | CODES, {}
    yield "norm, ordered", "norm", NORM | CODES | {"HAS_ORDER": True}, {}
    yield "layer norm", "norm", NORM | CODES | {"IS_LAYER": True, "HAS_BIAS": True}, {}
    yield "norm in place", "norm", NORM | {"TO_CODES": False, "TO_FLOATS": True, "ADDS": False}, {}
    yield "added norm", "norm", NORM | {"TO_CODES": False, "TO_FLOATS": False, "ADDS": True}, {}
    for name in LINEAR:
        layout, types = LAYOUTS[name], types_of(name)
        yield (
            f"linear {name}",
            "linear",
            {"K": 4096, "ROWS": ROWS, **layout.constants(), **TILE, **DENSE},
            types,
        )
    of_experts = {"K": 2048, "ROWS": ROWS, **LAYOUTS["q6_k"].constants(), **TILE, **OF_EXPERTS}
    yield "linear q6_k of experts", "linear", of_experts | {"ADDS": False}, types_of("q6_k")
    yield "linear bf16 of experts", "float_linear", FLOAT | OF_EXPERTS, {"weights": "*bf16"}
    for kind, chosen in (
        ("softmax", (False, False)),
        ("softmax, biased", (False, True)),
        ("sigmoid", (True, True)),
    ):
        yield (
            f"route by {kind}",
            "route",
            ROUTED | dict(zip(("IS_SIGMOID", "HAS_BIAS"), chosen)),
            {},
        )
    yield "list_pairs", "list_pairs", {"ACTIVE": 8, "WIDE": 2048, "MOST": ROWS}, {}
    yield "add_pairs", "add_pairs", {"D": 2048, "ACTIVE": 8, "BLOCK": 256}, {}
    yield "linear bf16", "float_linear", FLOAT, {"weights": "*bf16"}
    yield (
        "linear f8",
        "float_linear",
        FLOAT | {"GROUP_K": 128, "IS_FLOAT8": True},
        {"weights": "*u8"},
    )
    for kind in ("silu", "gelu", "gelu_tanh", "swiglu_oai"):
        gated = {
            "F": 14336,
            "KIND": kind,
            "IS_GATED": True,
            "TO_CODES": True,
            "GROUPS": 16,
            "ROWS": ROWS,
        }
        yield f"swiglu {kind}", "swiglu", gated, {}
    for form, kinds in CACHE.items():
        types, is_int8 = kinds | {"key_scales": "*fp16"}, form == "int8"
        rotated = HEADS | {"HALF": 64, "NORM": "before", "IS_LAYER": False, "IS_INT8": is_int8}
        yield f"place {form}", "place", rotated, types
        pairs = {"IS_INT8": is_int8, "PAIRS": 16 if is_int8 else 4}
        yield f"attend {form}", "attend", HEADS | STATE | pairs, types
        yield (
            f"attend {form}, window, cap",
            "attend",
            HEADS | STATE | pairs | {"WINDOW": 1024, "HAS_CAP": True},
            types,
        )
    yield "place, normed after", "place", rotated | {"NORM": "after"}, types
    for name, (gates, size) in {
        "mlp": (1, 4096),
        "lstm": (4, 4096),
        "wide lstm": (4, 16384),
    }.items():
        sizes = {"P": 4096, "G": gates, "E": size, "WIDE": 4096}
        yield f"advance {name}", "advance", sizes | {"HAS_BIAS": True, "STATE_HAS_BIAS": True}, {}
    yield "merge", "merge", MERGED | {"HAS_SINKS": True, "TO_CODES": True}, {}
    record = {"found": "*i32", "noises": "*i32"}
    yield "choose", "choose", {"K": 6, "IS_DRAWN": False, "BLOCK": 128}, record
    yield "draw", "choose", {"K": 1, "IS_DRAWN": True, "BLOCK": 128}, record
    for k, wide in ((1, 2048), (6, 8192), (16, 32768)):
        yield f"choose_of_blocks {k}", "choose_of_blocks", {"K": k, "WIDE": wide}, record
    yield "add_totals", "add_totals", {}, record
    yield (
        "finish_logits",
        "finish_logits",
        {"HAS_CAP": True, "HAS_DIVISOR": True, "BLOCK": 1024},
        {},
    )


def built(kernel: str, constants: dict[str, Any], types: dict[str, str], target: GPUTarget) -> Any:
    """Compile one kernel; pointers are aligned to 16 bytes."""
    function = next(
        vars(each)[kernel]
        for each in (kernels, placement, attention, routing, scores, recurrence)
        if kernel in vars(each)
    )
    known = POINTERS | NUMBERS | WHOLE | types | dict.fromkeys(constants, "constexpr")
    signature = {name: known.get(name, "*fp32") for name in function.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(function.arg_names)
        if signature[name].startswith("*") or name in ("N", "OUT")
    }
    keys = {(function.arg_names.index(name),): value for name, value in constants.items()}
    return compile(
        ASTSource(function, signature, keys, aligned),
        target=target,
        options=options_of(kernel, constants),
    )


def options_of(kernel: str, constants: dict[str, Any]) -> dict[str, Any]:
    """How the room launches a kernel."""
    if kernel == "choose_of_blocks":
        return launch_of(constants["WIDE"])
    return WIDE_LAUNCH if kernel in ("attend", "advance") else LAUNCH


def resources(ptx: str) -> dict[str, int]:
    """Registers, and bytes that are spilled, as the assembler of triton's wheel says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        arch = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)[1]
        tool = (
            knobs.nvidia.ptxas_blackwell
            if arch > "sm_100" and len(arch) > 5
            else knobs.nvidia.ptxas
        )
        command = [
            tool.path,
            "-v",
            f"--gpu-name={arch}",
            "-fmad=false",
            path,
            "-o",
            path.with_suffix(".cubin"),
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = map(int, re.findall(r"(\d+) bytes spill", said))
    return {"REG": int(re.findall(r"Used (\d+) registers", said)[0]), "SPILLS": sum(spills)}


def main(names: list[str]) -> None:
    """Print for each card and kernel its instructions and resources."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        is_cuda = name.startswith("sm_")
        target = (
            GPUTarget("cuda", int(name[3:]), 32)
            if is_cuda
            else GPUTarget("hip", name, 64 if name < "gfx95" and name[3] == "9" else 32)
        )
        seen: set[str] = set()
        for case, kernel, constants, types in cases():
            if name in ALIKE and kernel in seen and "int8" not in case:
                continue
            seen.add(kernel)
            asm = built(kernel, constants, types, target).asm
            text = asm["ptx" if is_cuda else "amdgcn"]
            words = re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.]+)", text, re.MULTILINE)
            used = resources(text) if is_cuda else {}
            found[f"{name} {case}"] = {"words": sorted(set(words)), **used}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
