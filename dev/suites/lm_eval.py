"""Runs lm-evaluation-harness against `forerun serve` with and without drafts, and compares scores and answers.

    .venv/bin/python -m dev.suites.lm_eval gsm8k.jsonl

A line of the file is a JSON object with `turns`, the question, and a `reference` that ends in `#### n`.
Two tasks are made of it: GSM8K with three examples (`generate_until`), and the same questions with four numbers to
choose from (`multiple_choice`, by the prompt's log-probabilities). The harness is installed in an environment of its
own and asks through its model `local-completions`. Exits 1 if a score or an answer differs, to the last byte.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from dev.suites.serving import drafted, served
from forerun.core.config import DEFAULT_MODEL
from forerun.hub.names import resolve
from forerun.lab.output import markdown_table

NEEDS = ("lm_eval[api]==0.4.13", "transformers")
RESULTS = Path(__file__).with_name("lm_eval.md")
DRAFTERS = ("auto", "none")
SHOTS = 3
CHOICES = 4
TASKS = ("forerun_gsm8k", "forerun_choice")


def main() -> None:
    """Run both servers, write the table, and compare."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("file", type=Path, help="questions")
    reader.add_argument("--limit", type=int, default=50)
    reader.add_argument("--work", type=Path, default=Path("build/lm_eval"))
    given = reader.parse_args()
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    python = _environment(work)
    _write_tasks(given.file, given.limit, work)
    _write_tokenizer(work / "tokenizer")
    found = {drafter: _evaluated(python, drafter, work) for drafter in DRAFTERS}
    scores = [scores for scores, _, _ in found.values()]
    answers = [answers for _, answers, _ in found.values()]
    different = sum(a != b for a, b in zip(*answers, strict=True))
    RESULTS.write_text("\n".join(_page(found, different, given.limit)))
    print(f"written to {RESULTS}")
    if scores[0] != scores[1] or different or not answers[0]:
        sys.exit("a score or an answer differs: see the table")


def _environment(work: Path) -> Path:
    """The harness's own Python."""
    python = work / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(work / "venv", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *NEEDS], check=True)
    return python


def _write_tasks(file: Path, limit: int, work: Path) -> None:
    """Descriptions in YAML, of which JSON is a part, and their rows."""
    rows = [_row(json.loads(line)) for line in file.read_text().splitlines() if line.strip()]
    rows = rows[: limit + SHOTS]
    for i, row in enumerate(rows):
        others = [rows[(i + step) % len(rows)]["number"] for step in range(1, len(rows))]
        wrong = [n for n in dict.fromkeys(others) if n != row["number"]][: CHOICES - 1]
        row["gold"] = i % CHOICES
        row["choices"] = [*wrong[: row["gold"]], row["number"], *wrong[row["gold"] :]]
    tasks = work / "tasks"
    tasks.mkdir(exist_ok=True)
    for split, part in (("test", rows[:limit]), ("train", rows[limit:])):
        (tasks / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    data = {
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {split: str(tasks / f"{split}.jsonl") for split in ("test", "train")}
        },
        "test_split": "test",
        "fewshot_split": "train",
        "fewshot_config": {"sampler": "first_n"},
        "num_fewshot": SHOTS,
        "doc_to_text": "Question: {{question}}\nAnswer:",
    }
    answer = {
        "task": TASKS[0],
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {
            "until": ["Question:", "</s>", "<|im_end|>"],
            "do_sample": False,
            "temperature": 0.0,
            "max_gen_toks": 256,
        },
        "filter_list": [
            {"name": "strict-match", "filter": _last(r"#### (\-?[0-9\.\,]+)")},
            {"name": "flexible-extract", "filter": _last(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", -1)},
        ],
        "metric_list": [
            {
                "metric": "exact_match",
                "aggregation": "mean",
                "higher_is_better": True,
                "regexes_to_ignore": [",", r"\$", r"(?s).*#### ", r"\.$"],
            }
        ],
    }
    choice = {
        "task": TASKS[1],
        "output_type": "multiple_choice",
        "num_fewshot": 0,
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    for task in (answer, choice):
        (tasks / f"{task['task']}.yaml").write_text(json.dumps({**data, **task}, indent=1))


def _row(given: dict[str, Any]) -> dict[str, Any]:
    number = re.sub(r".*####\s*", "", given["reference"], flags=re.DOTALL).strip()
    return {"question": given["turns"][0], "answer": given["reference"], "number": number}


def _last(pattern: str, group: int = 0) -> list[dict[str, Any]]:
    own = {"group_select": group} if group else {}
    return [
        {"function": "regex", "regex_pattern": pattern, **own},
        {"function": "take_first"},
    ]


def _write_tokenizer(folder: Path) -> None:
    """The model's tokenizer as the harness reads it: it counts tokens itself for log-probabilities."""
    if not folder.exists():
        import transformers

        file = resolve(DEFAULT_MODEL)
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer.save_pretrained(folder)


def _evaluated(
    python: Path, drafter: str, work: Path
) -> tuple[dict[str, Any], list[str], dict[str, float]]:
    """Scores, answers in the order of the questions, and what the server drafted."""
    out = work / f"out-{drafter}"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    with served(DEFAULT_MODEL, work / f"server-{drafter}.log", "-d", drafter) as url:
        own = f"model={DEFAULT_MODEL},base_url={url}/v1/completions,tokenizer={work / 'tokenizer'}"
        command = [
            python,
            "-m",
            "lm_eval",
            "run",
            "--model",
            "local-completions",
            "--tasks",
            ",".join(TASKS),
        ]
        command += ["--include_path", work / "tasks", "--output_path", out, "--log_samples"]
        command += ["--model_args", f"{own},num_concurrent=4,tokenizer_backend=huggingface"]
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(work / "cache"), "OPENAI_API_KEY": "none"}
        with (work / f"{drafter}.log").open("w") as log:
            streams: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
            subprocess.run(command, check=True, env={**os.environ, **offline}, **streams)
        counts = drafted(url)
    (result,) = out.rglob("results_*.json")
    scores = json.loads(result.read_text())["results"]
    answers = [line for task in TASKS for line in _answers(out, task)]
    return {task: _numbers(scores[task]) for task in TASKS}, answers, counts


def _answers(out: Path, task: str) -> Iterator[str]:
    """What the harness stored of each answer."""
    (path,) = out.rglob(f"samples_{task}_*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows.sort(key=lambda row: (row["doc_id"], row.get("filter", "")))
    return (json.dumps([row["doc_id"], row["resps"], row["filtered_resps"]]) for row in rows)


def _numbers(scores: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if isinstance(value, float)}


def _page(found: dict[str, Any], different: int, limit: int) -> Iterator[str]:
    yield "# lm-evaluation-harness\n"
    yield (
        f"{NEEDS[0]}, `local-completions`, {limit} questions of GSM8K's test set, SmolLM2-135M-Instruct, "
        f"{date.today()}. `python -m dev.suites.lm_eval FILE`\n"
    )
    names = [(task, name) for task in TASKS for name in found[DRAFTERS[0]][0][task]]
    lines = [
        [f"{task} {name}", *(repr(found[one][0][task][name]) for one in DRAFTERS)]
        for task, name in names
    ]
    yield markdown_table(("score", *(f"-d {one}" for one in DRAFTERS)), lines) + "\n"
    yield f"Answers and log-probabilities that differ, byte for byte: {different} of {len(found['none'][1])}."
    for one in DRAFTERS:
        counts = ", ".join(f"{name} {count:.0f}" for name, count in found[one][2].items())
        yield f"Tokens with `-d {one}`: {counts}."
    yield ""


if __name__ == "__main__":
    main()
