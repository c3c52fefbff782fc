"""What `forerun check MODEL` says of one model, from its headers and its tokenizer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from forerun.cli import tables
from forerun.core import registry, sizes
from forerun.core.config import EngineConfig
from forerun.core.errors import LoadError
from forerun.drafters.base.find import method_of
from forerun.engine.planner import Planner
from forerun.hub.published import for_model
from forerun.model.backends import triton as gpu_backend
from forerun.model.config import ModelConfig
from forerun.model.loader import choose_backend, device_of
from forerun.model.model import attention_cost
from forerun.system.device import available_nbytes, num_cores
from forerun.text.parsing.forms import form_of
from forerun.text.tokenizer import Tokenizer
from forerun.weights.base import Checkpoint

if TYPE_CHECKING:
    from forerun.weights.rtn import Scheme

_DRAFT_HEAD = re.compile(r"(^|\.)(mtp|nextn|medusa_head)\.")
_NAMED = 3
"""Names that are printed of a list, at most; the document has them all."""
LONG, WIDE = 8000, 8
"""The context and the rows of which it is said what they cost."""
_KINDS = {"gguf": "GGUF", "hf": "Hugging Face folder"}


def document(model: str, quant: str) -> dict[str, Any]:
    """Collect all facts as JSON values. Raises LoadError for a model that cannot be loaded."""
    config = EngineConfig(model=model, quant=cast("Scheme", quant))
    device = device_of(config)
    threads = num_cores()
    planner = Planner.of(config, device)
    checkpoint, decoder = planner.checkpoint, planner.model.config
    choose_backend(decoder, device)
    return {
        "model": model,
        "loads": True,
        "family": decoder.family,
        "architecture": checkpoint.architecture,
        "file": _KINDS[checkpoint.kind],
        "device": device,
        "not_on_gpu": gpu_backend.not_built(decoder),
        "threads": threads,
        "layers": decoder.num_layers,
        "context": decoder.max_position,
        "experts": _experts(decoder),
        **_formats(checkpoint),
        "chat": _chat(planner.tokenizer),
        "drafting": _drafting(planner),
        "long": long_context(planner),
        "memory": _memory(planner),
    }


def long_context(planner: Planner) -> dict[str, Any]:
    """Say what passes cost above a long context, in passes of one row above none, by arithmetic.

    `v` is the cost of a wide pass over that of one row: a lower bound, as the matrices count as one row's.
    """
    context = min(LONG, planner.model.config.max_position)
    attention = attention_cost(planner.model)(context)
    v = (1 + WIDE * attention) / (1 + attention)
    return {"context": context, "rows": WIDE, "attention": round(attention, 4), "v": round(v, 2)}


def long_line(facts: Mapping[str, Any]) -> str:
    """Put it into words."""
    return (
        f"above {facts['context']} tokens attention adds {facts['attention']:.0%} to a pass of one row, "
        f"and one of {facts['rows']} rows takes at least {facts['v']:.1f} times as long, by arithmetic"
    )


def _formats(checkpoint: Checkpoint) -> dict[str, Any]:
    """Group the file's tensors by format; those of the file that no format here can read, by name."""
    sums: dict[str, tuple[int, float]] = {}
    unsupported = []
    for name in sorted(checkpoint.names()):
        try:
            stored = checkpoint.tensor(name)
        except LoadError:
            unsupported.append(name)
            continue
        count, nbytes = sums.get(stored.format.name, (0, 0.0))
        nbytes += math.prod(stored.shape) * stored.format.bits_per_weight / 8
        sums[stored.format.name] = count + 1, nbytes
    largest = sorted(sums.items(), key=lambda each: -each[1][1])
    formats = [
        {"format": name, "tensors": count, "mb": round(nbytes / 1e6, 3)}
        for name, (count, nbytes) in largest
    ]
    return {"formats": formats, "unsupported": unsupported}


def _experts(config: ModelConfig) -> dict[str, int] | None:
    layers = [config.layer(i).experts for i in range(config.num_layers)]
    moe = [experts for experts in layers if experts is not None]
    if not moe:
        return None
    first = moe[0]
    return {"num_experts": first.num_experts, "num_active": first.num_active, "layers": len(moe)}


def _chat(tokenizer: Tokenizer) -> dict[str, Any]:
    """Say whether there is a chat template, and how thoughts and calls are separated from the text."""
    template = tokenizer.chat_template
    if template is None:
        return {"template": False, "tools": False, "calls": None, "thoughts": None, "content": None}
    form = form_of(template, tokenizer.encoder.token_to_id)
    calls, thoughts = form.calls.open, None
    if form.thinking is not None:
        thoughts = [form.thinking.open, form.thinking.close]
    if form.is_harmony:
        calls, thoughts = "<|channel|>commentary", ["<|channel|>analysis", "<|end|>"]
    return {
        "template": True,
        "tools": tokenizer.reads_tools,
        "calls": calls,
        "thoughts": thoughts,
        "content": dict(tokenizer.content_forms),
    }


def _drafting(planner: Planner) -> dict[str, Any]:
    """Say what `auto` drafts with, what there is for this model, and what heads its file brings."""
    target = planner.target()
    return {
        "auto": planner.drafters[0].name,
        "ships": [
            name for name in registry.names("drafters") if method_of(name).bundled_for(target)
        ],
        "heads": sorted(name for name in planner.checkpoint.names() if _DRAFT_HEAD.search(name)),
        "published": [
            {
                "name": each.drafter,
                "kind": each.kind,
                "licence": each.licence,
                "mb": each.mb,
                "here": each.here() is not None,
            }
            for each in for_model(target.identity)
        ],
    }


def _memory(planner: Planner) -> dict[str, Any]:
    plan, limit = planner.plan(), available_nbytes()
    return {
        "components": dict(plan.components),
        "total_bytes": plan.total,
        "context": plan.workload.max_len,
        "num_seqs": plan.workload.num_seqs,
        "fits": limit is None or plan.total <= limit,
    }


def report(facts: dict[str, Any]) -> None:
    """Print the facts as a table."""
    tables.report().print(tables.table(("", ""), _lines(facts), num_left=2))


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        (
            "model",
            f"{facts['family']} ({facts['architecture']}, {facts['file']}), {facts['layers']} layers",
        ),
        ("device", f"{facts['device']}, {facts['threads']} threads"),
        ("formats", _formats_line(facts)),
    ]
    can = "its tokens with --device cuda are the CPU's (extra gpu)"
    lines.append(("GPU", facts["not_on_gpu"] or can))
    if (experts := facts["experts"]) is not None:
        text = f"{experts['num_experts']}, {experts['num_active']} a row"
        lines.append(("experts", f"{text}, in {experts['layers']} of {facts['layers']} layers"))
    lines += [
        ("context", f"{facts['context']} tokens"),
        ("chat", _chat_line(facts["chat"])),
        ("drafting", _drafting_line(facts["drafting"])),
    ]
    if heads := facts["drafting"]["heads"]:
        used = "drafts as mtp" if "mtp" in facts["drafting"]["ships"] else "not used"
        lines.append(("draft heads", f"{_list(heads)} in the file: {used}"))
    if published := facts["drafting"]["published"]:
        lines.append(("published", _published_line(facts["model"], published)))
    lines.append(("long contexts", long_line(facts["long"])))
    memory = facts["memory"]
    text = f"{sizes.mebibytes(memory['total_bytes'])} with {memory['num_seqs']} sequences"
    text += f" of {memory['context']} tokens"
    text += "" if memory["fits"] else ", more than is available here"
    lines.append(("memory", f"{text} (forerun plan says of what)"))
    return lines


def _formats_line(facts: dict[str, Any]) -> str:
    text = "; ".join(
        f"{each['format']}: {each['tensors']} tensor{'s' * (each['tensors'] > 1)}, {each['mb']:.4g} MB"
        for each in facts["formats"]
    )
    unsupported = facts["unsupported"]
    return text + (f"; not supported and not used: {_list(unsupported)}" if unsupported else "")


def _chat_line(chat: dict[str, Any]) -> str:
    if not chat["template"]:
        return "no template: it completes text (generate --raw)"
    text = "a template"
    text += f"; tool calls as {chat['calls']}" if chat["tools"] else " without a place for tools"
    if chat["thoughts"] is not None:
        text += f"; thinks from {chat['thoughts'][0]} to {chat['thoughts'][1]}"
    if parts := [role for role, form in chat["content"].items() if form == "parts"]:
        text += f"; content as parts: {', '.join(parts)}"
    if lost := [role for role, form in chat["content"].items() if form is None]:
        text += f"; leaves out what is said by: {', '.join(lost)}"
    return text


def _drafting_line(drafting: dict[str, Any]) -> str:
    ships = ", ".join(drafting["ships"])
    text = f"auto is {drafting['auto']}"
    return text + (
        f"; made for this model or its tokenizer: {ships}" if ships else "; nothing ships for it"
    )


def _published_line(model: str, published: list[dict[str, Any]]) -> str:
    names = [f"{each['name']} ({'here' if each['here'] else each['kind']})" for each in published]
    if any(each["here"] for each in published):
        return _list(names)
    return f"{_list(names)}; forerun pull {model} --drafter fetches the first"


def _list(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
