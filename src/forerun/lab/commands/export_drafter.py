"""`forerun export-drafter`: a trained network as other engines read it."""

from __future__ import annotations

from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab.output import writing


@opt.command()
@opt.engine(without=("drafter", "controller", "max_num_seqs", "speculative_config"), drafter="none")
@opt.argument("folder", type=opt.PATH, help="A folder of forerun train drafter.")
@opt.argument("out", type=opt.PATH, help="The folder to write, or of an eagle3 a .gguf file.")
def command(config: EngineConfig, folder: Path, out: Path) -> None:
    """Write a network that drafts for vLLM and others: the model's rows it uses become its own, in fp16.

    OUT.gguf is for llama.cpp, in 8 bits: an eagle3 that was trained with --gguf, beside a model that is a GGUF file.
    """
    from forerun.lab.train.learners import export, kind_module
    from forerun.weights.checkpoint import open_checkpoint

    llm = opt.load(config, max_num_seqs=1)
    with writing(out):
        if out.suffix == ".gguf":
            kind_module("eagle3").export_gguf(folder, out, llm.target(), open_checkpoint(llm.path))
        else:
            export(folder, out, llm.target())
    click.echo(f"wrote {out}")
