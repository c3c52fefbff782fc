"""Moves a network to a sibling of its model of another width, by three linear maps.

    python -m dev.transplant BIG SMALL --answers ANSWERS --out FOLDER [--texts 250]
    forerun train drafter -m SMALL --from FOLDER --answers ITS_ANSWERS --tokens 60k

BIG has a network that `auto` drafts with, SMALL its tokenizer. ANSWERS are replies of BIG (`forerun train data`): both
models read some. Least squares give states of BIG from states of SMALL, its embeddings from SMALL's (tokens weighted by
the root of their counts), and the head's rows times the network's map from SMALL's rows. Each is folded into the
network's own matrix, so that what is written is a network of SMALL like any other.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from forerun import LLM
from forerun.drafters.mlp_speculator import files
from forerun.drafting.networks import folder as network_folder
from forerun.drafting.vocabulary import fingerprint
from forerun.hub.names import name_of
from forerun.lab.train import replies
from forerun.lab.train.answers import open_store
from forerun.lab.train.learners import write_network
from forerun.lab.train.session import MAX_REPLY, RECORD
from forerun.lab.train.states import StateReader
from forerun.model.model import Model, projected_head
from forerun.torch.networks.mlp_speculator import rms

RIDGE = 1e-3
"""Times the mean of the Gram matrix's diagonal."""
ROWS = 8192


def least_squares(x: Tensor, y: Tensor) -> Tensor:
    """Return the map (K, D) for which x (N, K) times it is nearest y (N, D)."""
    gram = (x.T @ x).double()
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
    return torch.linalg.solve(gram + ridge, (x.T @ y).double()).float()


def states(llm: LLM, texts: list[replies.Reply]) -> Tensor:
    """Return a model's last states over replies, of unit mean square."""
    with tempfile.TemporaryDirectory() as kept:
        read = StateReader(
            llm.model, (), all_rows=False, max_len=MAX_REPLY, folder=Path(kept), max_nbytes=0
        )
        return rms(torch.cat([read(text).last.float() for text in texts]))


def embeddings(model: Model) -> Tensor:
    """Return the embedding of every token, (V, D)."""
    size = model.config.vocab_size
    parts = [model.embed(np.arange(i, min(i + ROWS, size))) for i in range(0, size, ROWS)]
    return torch.from_numpy(np.concatenate(parts))


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("big")
    parser.add_argument("small")
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=250)
    given = parser.parse_args()
    big, small = (
        LLM(model, drafter="none", max_model_len=2048) for model in (given.big, given.small)
    )
    vocabulary = fingerprint(big.tokenizer)
    if fingerprint(small.tokenizer) != vocabulary:
        parser.error("the models have different tokenizers")
    store = replies.of_store(open_store(name_of(big.path), vocabulary, given.answers))
    texts = [text for text in store if len(text.tokens) <= MAX_REPLY]
    target = big.target()
    folder = files.fitting(target)[0]
    config, stored, ids = files.stored(network_folder.read(folder, target), target)
    assert ids is not None, "a network with tokens of its own"
    tensors = {name: torch.from_numpy(np.array(each)) for name, each in stored.items()}
    counts = Counter(token for text in texts for token in text.tokens)
    size = small.model.config.vocab_size
    weight = torch.tensor([counts[token] ** 0.5 + 0.3 for token in range(size)])[:, None]

    of_states = least_squares(
        states(small, texts[: given.texts]), states(big, texts[: given.texts])
    )
    of_tokens = least_squares(*(embeddings(each.model) * weight for each in (small, big)))
    width, known = small.model.config.hidden_size, weight[torch.from_numpy(ids)]
    rows = torch.from_numpy(projected_head(small.model, ids, np.eye(width, dtype=np.float32)))
    logits = torch.from_numpy(projected_head(big.model, ids, stored["head_map.weight"]))
    tensors["projs.0.weight"] = tensors["projs.0.weight"] @ of_states.T
    tensors["emb_map.weight"] = tensors["emb_map.weight"] @ of_tokens.T
    tensors["head_map.weight"] = least_squares(rows * known, logits * known)

    document = {
        "model_type": files.MODEL_TYPE,
        **asdict(replace(config, hidden_size=width)),
        "draft_vocab_size": len(ids),
        "target": network_folder.describe_target(small.target(), name_of(small.path)),
        "temperature": json.loads((folder / network_folder.CONFIG).read_text())["temperature"],
    }
    write_network(given.out, document, tensors, ids)
    kind = json.loads((folder / RECORD).read_text())["kind"]
    record = {"kind": kind, "moved_from": name_of(big.path), "prompts": []}
    (given.out / RECORD).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
