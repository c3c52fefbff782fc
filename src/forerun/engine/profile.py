"""A model's profile: what `forerun autotune` found out about one model on one machine, as a JSON file.

`--drafter auto` takes its drafter from it, and the controller its first opinion (`engine/controller.py`).
A profile belongs to a file's contents, a machine and a way of running, all of which are in its name
and in the file: where one of them differs there is simply no profile. The format is described in
docs/autotune.md. Nothing here measures anything.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import forerun
from forerun.core import device as machine
from forerun.core import files
from forerun.core.config import DRAFT_FIELDS, EngineConfig
from forerun.core.costs import CostCurve
from forerun.core.opened import OpenedFile, digest
Prior = tuple  # shim
from forerun.engine.figures import DrafterFigures, PassTimes
from forerun.hub.names import cache_dir

VERSION = 1
"""Version of the file format."""

RESOLVED = {"model", "device", "backend", "threads"}
"""Options whose outcome is in the key, as they may say `auto`."""
WITHOUT_EFFECT = {
    *("drafter", *DRAFT_FIELDS, "draft_options", "min_draft", "draft_budget"),
    *(
        "controller",
        "learn",
        "weight_cache",
        "max_model_len",
        "max_num_seqs",
        "prefill_chunk",
        "program",
        "seed",
    ),
}
"""Options on which neither the answers nor what passes and drafts cost depend. All others belong to the key."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subject:
    """Which model, run how and where: the key of a profile."""

    name: str
    model: str
    """Digest of the model's contents."""
    setting: Mapping[str, object]
    """Machine, threads, backend and options: whatever costs depend on."""

    @classmethod
    def of(
        cls,
        model: Path,
        opened: Sequence[OpenedFile],
        config: EngineConfig,
        *,
        device: str,
        backend: str,
        threads: int,
    ) -> Subject:
        """Identify a model by the files that were opened, run as `config` says, on that device by that backend.

        Every option that is not known to have no effect counts; defaults are left out.
        """
        report = machine.report()
        setting: dict[str, Any] = {key: report[key] for key in ("cpu", "isa")}
        setting |= {"threads": threads, "device": device, "backend": backend}
        for option in fields(config):
            value = getattr(config, option.name)
            if option.name not in RESOLVED | WITHOUT_EFFECT and value != option.default:
                setting[option.name] = value
        given = {key: value for key, value in setting.items() if value is not None}
        return cls(model.stem, digest(opened), given)

    @property
    def path(self) -> Path:
        """File of the subject's profile, whether it exists or not."""
        return folder() / f"{self.name}-{self.model}-{digest_of(self.setting)}.json"


@dataclass(frozen=True, slots=True)
class Profile:
    """The file: where it holds, what was chosen, and the results it was chosen by."""

    subject: Subject
    date: str
    drafter: str
    """The best setting, or `none` where drafting is not worth it."""
    passes: PassTimes
    drafters: tuple[DrafterFigures, ...]
    """Every setting that was tried."""
    measured: Mapping[str, object]
    """The chosen setting against plain decoding: `speedup`, `speedup_lo`, `speedup_hi`, and on how many prompts."""

    def prior(self, drafter: str, max_seqs: int) -> Prior:
        """Return the prior of a controller; of a setting that was never tried, only what passes cost."""
        passes = self.passes.costs(max_seqs)
        for figures in self.drafters:
            if figures.drafter == drafter:
                return Prior(passes, CostCurve(figures.draft_cost), figures.nodes)
        return Prior(passes)

    def document(self) -> dict[str, object]:
        """Return the file's contents as JSON values."""
        return {
            "version": VERSION,
            "forerun": forerun.__version__,
            "date": self.date,
            "model": {"name": self.subject.name, "digest": self.subject.model},
            "setting": dict(self.subject.setting),
            "drafter": self.drafter,
            "measured": dict(self.measured),
            "passes": [asdict(time) for time in self.passes.times],
            "drafters": [
                {"expected": round(figures.speedup(self.passes), 4), **asdict(figures)}
                for figures in self.drafters
            ],
        }

    def save(self) -> Path:
        """Write the file in one go; return where."""
        path = self.subject.path
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, (json.dumps(self.document(), indent=1) + "\n").encode())
        return path

    @classmethod
    def from_json(cls, document: object, subject: Subject) -> Profile:
        """Read a file's JSON. Raises ValueError, KeyError or TypeError for another kind of file or version."""
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object")
        made_by = (document.get("version"), document.get("forerun"))
        if made_by != (VERSION, forerun.__version__):
            raise ValueError(f"it is of forerun {made_by[1]}, this is {forerun.__version__}")
        return cls(
            subject,
            str(document["date"]),
            str(document["drafter"]),
            PassTimes.from_json(document["passes"]),
            tuple(DrafterFigures.from_json(row) for row in document["drafters"]),
            dict(document["measured"]),
        )


def load(subject: Subject) -> Profile | None:
    """Return the subject's profile if there is one; a file that cannot be used is ignored, with a note."""
    path = subject.path
    try:
        return Profile.from_json(json.loads(path.read_text(encoding="utf-8")), subject)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("ignoring the profile %s: %s; forerun autotune writes a new one", path, error)
        return None


def choices(opened: Sequence[OpenedFile]) -> list[str]:
    """List the drafters that a model's profiles chose, one a machine and setting; unreadable ones left out."""
    drafters = []
    for path in sorted(folder().glob(f"*-{digest(opened)}-*.json")):
        try:
            drafters.append(str(json.loads(path.read_text(encoding="utf-8"))["drafter"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return drafters


def folder() -> Path:
    """Return the folder of the profiles in the cache; it may not exist yet."""
    return cache_dir().parent / "profiles"


def digest_of(value: object) -> str:
    """Hash any JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return blake2b(text.encode(), digest_size=4).hexdigest()
