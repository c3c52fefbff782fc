"""Make the prompts that the package's table was made of: `python -m dev.make_prompts DATA_DIR OUT.jsonl`.

DATA_DIR holds the text files of `SETS`, gzipped JSON lines: rows with `turns` or `messages`, of which the user's first
one is a prompt, or with `text`, of which tasks are made. The same files give the same prompts. How a table is made of
them stands in src/forerun/drafters/recycling/shipped/README.md.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SETS = {
    "gpteacher": (6500, "MIT"),
    "gsm8k_train": (3000, "MIT"),
    "self_instruct_seeds": (200, "Apache-2.0"),
    "sgd_dialogues": (900, "CC BY-SA 4.0"),
    "taskmaster4_dialogues": (150, "CC BY 4.0"),
    "wikipedia_paragraphs": (1500, "CC BY-SA 3.0"),
    "wikipedia_sentences": (1200, "CC BY-SA 4.0"),
    "openstax_textbooks": (1300, "CC BY 4.0"),
    "python_docs": (500, "PSF-2.0"),
    "litbank_novels": (100, "public domain"),
    "state_of_the_union": (250, "public domain"),
}
"""Rows that are taken of each, at most, and their licence."""
OF_TITLES = "CC BY-SA 3.0"
"""Titles of Wikipedia's articles, textbooks' sections and novels, which are asked about."""
EXCERPT_WORDS = (60, 150, 300, 500)
WORDS_AN_EXCERPT, MAX_EXCERPTS = 8000, 12
NUM_TOPICS = 3000
SHORT_WORDS = 60

OF_A_SENTENCE = (
    "Translate into German: {}",
    "Translate into French: {}",
    "Translate into Spanish: {}",
    "Rewrite this sentence in simple words: {}",
    "Is the following statement likely to be true? Explain step by step.\n\n{}",
)
OF_A_TEXT = (
    "Summarize the following text:\n\n{}",
    "Give the main points of this text as a list:\n\n{}",
    "List all names, dates and numbers in this text as JSON:\n\n{}",
    "Answer the question using the context.\n\nContext: {}\n\nQuestion: What is important to know here?",
    "{}\n\nBased on the text above, what is the most important thing, and why?",
)
OF_A_STORY = (
    "Continue this story:\n\n{}",
    "Summarize this passage:\n\n{}",
    "Who speaks in this passage, and what happens?\n\n{}",
    "Rewrite this passage in modern English:\n\n{}",
)
OF_A_PAGE = (
    "Explain the following documentation in simple words:\n\n{}",
    "Write a short Python program that uses what is described here:\n\n{}",
)
OF_A_TOPIC = (
    "What is {}?",
    "Tell me about {}.",
    "Explain {} to a child.",
    "What are the main ideas behind {}?",
    "Why does {} matter? Give examples.",
    "Write a short article about {}.",
    "Write an essay about {}.",
    "Write a short story about {}.",
    "Write a poem about {}.",
    "Write an email about {}.",
    "Write a blog post about {}.",
    "Give me five tips about {}.",
    "What are the pros and cons of {}?",
    "Write a dialogue between two people who disagree about {}.",
    "Plan a day around {}.",
)
TASKS = {"fiction": OF_A_STORY, "technical": OF_A_PAGE}
"""By the category of a row with a long text."""


def main(data: Path, out: Path) -> None:
    """Write all prompts, in an order of their own."""
    rng, prompts, topics = random.Random(7), [], []
    for name, (most, licence) in SETS.items():
        with gzip.open(data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        for row in rng.sample(rows, min(most, len(rows))):
            prompts += (
                {"id": i, "category": name, "turns": [text], "license": licence}
                for i, text in prompts_of(row, rng)
            )
            topics += [row["title"]] if "title" in row else []
    names = [topic for topic, n in Counter(topics).items() if n == 1]  # no "Introduction"
    for i in range(NUM_TOPICS):
        text = rng.choice(OF_A_TOPIC).format(rng.choice(names))
        prompts.append(
            {"id": f"topic-{i}", "category": "topics", "turns": [text], "license": OF_TITLES}
        )
    rng.shuffle(prompts)
    with out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts)
    print(f"{out}: {len(prompts)} prompts")


def prompts_of(row: dict, rng: random.Random) -> Iterator[tuple[str, str]]:
    """The prompts that a row is or gives, each with a name of its own."""
    if said := row.get("turns") or row.get("messages"):
        yield row["id"], said[0]
        return
    words = re.split(r"(?<=\S)(?=\s)", row["text"])
    tasks = TASKS.get(row.get("category"), OF_A_TEXT)
    if len(words) <= SHORT_WORDS:
        tasks = OF_A_SENTENCE
    for i in range(min(1 + len(words) // WORDS_AN_EXCERPT, MAX_EXCERPTS)):
        size = rng.choice(EXCERPT_WORDS)
        begin = rng.randrange(max(1, len(words) - size)) if i else 0
        excerpt = "".join(words[begin : begin + size]).strip()
        yield f"{row['id']}-{i}", rng.choice(tasks).format(excerpt)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m dev.make_prompts DATA_DIR OUT.jsonl")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
