"""What data a drafter learns from, and which kind it is, at equal steps: one short run of each, and the table of all.

    python -m dev.training_table FOLDER --answers REPLIES --truth DATA.jsonl --text TEXT.txt [--only NAME,NAME]

`replies` learns from the model's replies to the prompts that the data sets have answers of their own for; `text` from
plain text; `two stages` from text and then those replies, 5:2; `ground truth` from the data sets' own answers, with the
model's chances after each of their tokens. The kinds learn from all replies, each with about as many weights. All are
measured on the same replies that were held out. `DATA.jsonl` has `id`, as in the replies' keys, and `response`. Ctrl-C
loses nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from forerun.lab.commands import _training
from forerun.lab.train import networks, session
from forerun.lab.train.learners import Kind
from forerun.lab.train.replies import Reply
from forerun.lab.train.session import Data
from forerun.lab.train.states import StateReader
from forerun.lab.train.trainer import TrainSettings
from forerun.llm import LLM

VOCAB, DEPTH, HOLD_GB = 4096, 3, 2.0
KINDS = {
    "mlp_speculator": Kind("mlp_speculator", DEPTH),
    "eagle3": Kind("eagle3", DEPTH, inner_dim=1088, for_gguf=True),
    "medusa": Kind("medusa", DEPTH, num_layers=4),
}
"""About 4.3 M weights each with SmolLM2-135M's width."""
DATA = ("replies", "text", "two stages", "ground truth")
STAGES = {"text": (1, 0), "two stages": (_training.TEXT_SHARE, _training.REPLY_SHARE)}
"""Shares of text and replies; without an entry, replies alone."""
DOMAINS = ("codegen", "math", "reasoning", "writing", "roleplay", "summary", "translation", "all")


def main() -> None:
    """Train what is not done yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-m", "--model", default="smollm2-135m-instruct")
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--text", type=Path, action="append", default=[])
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--only", default=",".join((*DATA, *KINDS)))
    given = parser.parse_args()
    llm = LLM(given.model, drafter="none", threads=1, max_model_len=2048, controller=False)
    data = session.read_data(llm, given.answers, given.text, VOCAB)
    truth = _truth(llm, data, given.truth) if given.truth else {}
    readers: dict[object, StateReader] = {}
    for name in given.only.split(","):
        folder = given.folder / name.replace(" ", "_")
        if not (folder / session.RECORD).exists():
            settings = TrainSettings(
                given.tokens,
                stages=STAGES.get(name, (0, 1)),
                batch=given.batch,
                eval_every=given.tokens // 2,
                patience=0,
                bf16=session.has_bf16(),
            )
            _train(llm, _data_of(name, data, truth), KINDS.get(name), settings, folder, readers)
    print(table(given.folder))


def _truth(llm: LLM, data: Data, path: Path) -> dict[str, Reply]:
    """By prompt: what the data set answers, instead of the model."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    said = {row["id"]: row["response"] for row in rows}
    found = {}
    for reply in data.train:
        name = reply.key.rpartition("/")[0]
        if name in said and name not in found:
            answer = llm.tokenizer.encode(said[name], bos=False)
            end = reply.tokens[-1:] if reply.tokens[-1] in llm.tokenizer.eos_ids else ()
            tokens = (*reply.tokens[: reply.first], *answer, *end)
            if len(tokens) <= session.MAX_REPLY:
                found[name] = Reply(f"{name}/truth", reply.domain, tokens, reply.first)
    return found


def _data_of(name: str, data: Data, truth: Mapping[str, Reply]) -> Data:
    """What a run learns from."""
    if name in KINDS:
        return data
    if not truth or (name in STAGES and not data.texts):
        raise SystemExit(f"{name} needs --truth and --text")
    if name == "ground truth":
        return replace(data, train=[*truth.values()])
    replies = [reply for reply in data.train if reply.key.rpartition("/")[0] in truth]
    return replace(data, train=replies)


def _train(
    llm: LLM,
    data: Data,
    kind: Kind | None,
    settings: TrainSettings,
    folder: Path,
    readers: dict[object, StateReader],
) -> None:
    """One run to its end; its record says what was measured of the best weights. Runs share the model's states."""
    kind = kind or KINDS["mlp_speculator"]
    torch.manual_seed(settings.seed)
    learner = networks.new(llm, kind, data.ids)
    origin = {"kind": asdict(kind)}
    trainer = session.new_trainer(llm, learner, data, settings, HOLD_GB, folder, origin)
    read = trainer.read
    trainer.read = readers.setdefault((read.layers, read.whole), read)
    session.run(llm, trainer, data, "")


def table(folder: Path, domains: Sequence[str] = DOMAINS) -> str:
    """Tokens a pass on held-out replies, of all runs below a folder, in Markdown."""
    lines = [f"| run | weights | tokens | CPU s | {' | '.join(domains)} | at T = 1 |"]
    lines.append("|---" * (len(domains) + 5) + "|")
    for path in sorted(folder.glob(f"*/{session.RECORD}")):
        record = json.loads(path.read_text(encoding="utf-8"))
        held_out = record["held_out"]
        if not held_out:
            continue
        size = (path.parent / "model.safetensors").stat().st_size / 2e6
        taus = [f"{held_out[name]['tau']:.2f}" if name in held_out else "" for name in domains]
        lines.append(
            f"| {path.parent.name} | {size:.1f} M | {record['tokens']} | {record['cpu_s']} | {' | '.join(taus)} "
            f"| {held_out['all']['tau_sampled']:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
