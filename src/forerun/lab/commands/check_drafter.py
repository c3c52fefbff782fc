"""`forerun check-drafter`: whether a drafter keeps the contract, on tiny random models, without any weights."""

from __future__ import annotations

from forerun.cli import options as opt
from forerun.lab.output import publish


@opt.command()
@opt.argument("drafter", help="NAME:option=value,..., or path/to/file.py:option=value,...")
@opt.as_json
def command(drafter: str, as_json: bool) -> None:
    """Check that a drafter keeps the contract; exit 1 if it does not. Takes some seconds."""
    from forerun.cli import tables
    from forerun.lab.contract.candidate import Candidate
    from forerun.lab.contract.contract import run
    from forerun.lab.torch.backend import set_threads

    set_threads(1)  # the models are tiny
    out, rows = tables.report(), []
    for what, broken in run(Candidate.of(drafter)):
        rows.append({"check": what, "holds": broken is None, "broken": broken})
        if not as_json:
            mark, why = ("holds ", "") if broken is None else ("BROKEN", f": {broken}")
            out.print(f"{mark} {what}{why}")
    holds = all(row["holds"] for row in rows)
    document = {"drafter": drafter, "holds": holds, "rows": rows}
    publish(document, lambda: None, as_json=as_json, fails=not holds)
