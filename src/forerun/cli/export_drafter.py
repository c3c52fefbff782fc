"""`forerun export-drafter`: a trained network as other engines read it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli import _options as opt
from forerun.core.config import EngineConfig


@opt.engine(without=("drafter", "controller", "max_num_seqs", "speculative_config"), drafter="none")
def command(
    config: EngineConfig,
    folder: Annotated[Path, typer.Argument(help="A folder of forerun train drafter.")],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
) -> None:
    """Write a network that drafts for vLLM and others: the model's rows it uses become its own, in fp16."""
    from forerun.drafters._export import export

    export(folder, out, opt.load(config, max_num_seqs=1).target())
    typer.echo(f"wrote {out}")
