"""Moves a network to a sibling of the model it was trained for: of another width, with the same tokenizer.

Of the network, three matrices know its model: what reads a state, what reads embeddings, and the map before the head's
rows. Least squares find states of the old model from states of the new one, over texts that both read, embeddings from
embeddings (tokens weighted by the root of their counts), and the map that with the new head gives the logits that the
old one gave. Each is multiplied into the matrix, so that the result is a network of the new model like any other.

N rows or tokens, D and D' widths of the new and the old model, p inner width, V' draft vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from forerun.cli import tables
from forerun.core.arrays import Ids
from forerun.core.errors import ConfigError
from forerun.drafters.base.vocabulary import fingerprint
from forerun.lab.torch.networks.mlp_speculator import rms
from forerun.lab.train import batches
from forerun.lab.train.kept import FOUND_KIND
from forerun.lab.train.learners import Kind, Learner, new_learner
from forerun.lab.train.replies import Reply
from forerun.lab.train.session import Data, state_reader
from forerun.lab.train.states import StateReader
from forerun.llm import LLM
from forerun.model.model import Model, projected_head

UNSEEN = 0.3
"""Weight of a token that no text holds; that of others is this and the root of their count."""
MAPS = {"emb_map.weight", "head_map.weight"}
RIDGE = 1e-3
"""Times the mean of the Gram matrix's diagonal."""
ROWS = 8192


def moved(
    old: Learner, kind: Kind, ids: Ids, llms: tuple[LLM, LLM], data: Data, states_gb: float
) -> tuple[Learner, Kind]:
    """Make a network of the second model one of the first; both read the replies that a run begins with.

    Raises ConfigError unless their tokenizers are the same and it is mlp_speculator with the model's embedding and
    head.
    """
    if fingerprint(llms[1].tokenizer) != data.vocabulary:
        raise ConfigError("--from-model must have the tokenizer of this model")
    if old.name != FOUND_KIND or not old.net.state_dict().keys() >= MAPS:
        raise ConfigError(
            "--from-model is for mlp_speculator with the model's embedding and head, each step the same"
        )
    kind = replace(kind, inner_dim=old.shape.inner_dim)
    new = new_learner(kind, llms[0].model, ids, {})
    new.is_trained = True
    readers = [state_reader(llm, data.path, states_gb) for llm in llms]
    fit(new, old, ids, batches.first_pool(data.train), readers)
    return new, kind


def fit(
    new: Learner, old: Learner, ids: Ids, texts: Sequence[Reply], readers: Sequence[StateReader]
) -> None:
    """Give a network the weights of one of another model, of the states that readers of both have of some texts."""
    new_model, old_model = models = [reader.model for reader in readers]
    counts = Counter(token for text in texts for token in text.tokens)
    size = min(model.config.vocab_size for model in models)
    weight = torch.tensor([counts[token] ** 0.5 + UNSEEN for token in range(size)])[:, None]
    weights = old.net.state_dict()
    of_states = least_squares(*_states(texts, readers))
    of_tokens = least_squares(*(_embeddings(model, size) * weight for model in models))
    known = weight[torch.from_numpy(ids)]
    rows = torch.from_numpy(new_model.head_weights(ids))
    logits = torch.from_numpy(projected_head(old_model, ids, weights["head_map.weight"].numpy()))
    first = next(name for name in ("projs.0.weight", "proj.0.weight") if name in weights)
    weights[first] = weights[first] @ of_states.T
    weights["emb_map.weight"] = weights["emb_map.weight"] @ of_tokens.T
    weights["head_map.weight"] = least_squares(rows * known, logits * known)
    new.net.load_state_dict(weights)


def least_squares(x: Tensor, y: Tensor) -> Tensor:
    """Return the map (K, D) for which x (N, K) times it is nearest y (N, D)."""
    gram = (x.T @ x).double()
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
    return torch.linalg.solve(gram + ridge, (x.T @ y).double()).float()


def _states(texts: Sequence[Reply], readers: Sequence[StateReader]) -> list[Tensor]:
    """The last states of every reader over texts, (N, D) each, of unit mean square as the network reads them."""
    columns = list[Tensor]()
    with tables.counter("reading", len(readers) * len(texts)) as show:
        for reader in readers:
            rows = list[Tensor]()
            for text in texts:
                rows.append(rms(reader(text).last.float()))
                show(len(columns) * len(texts) + len(rows))
            columns.append(torch.cat(rows))
    return columns


def _embeddings(model: Model, size: int) -> Tensor:
    """The embeddings of the first `size` tokens, (size, D)."""
    parts = [model.embed(np.arange(i, min(i + ROWS, size))) for i in range(0, size, ROWS)]
    return torch.from_numpy(np.concatenate(parts))
