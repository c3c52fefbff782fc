"""Train a small model of Qwen3.5's kind with its MTP head, to see drafts of a head inside a model accepted.

    python -m dev.tiny_hybrid TEXT.jsonl.gz OUT [--minutes 60]

It learns dialogues and Python's standard library: four layers, three of them with the gated delta rule, 4096 tokens.
transformers computes and the folder OUT is one that it would load; `mtp.*` are the head's. Interrupted, it goes on
where it was. What its drafts are worth says nothing of large models: it shows that the mechanism works.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

VOCAB, LENGTH, ROWS = 4096, 128, 16
END = "<|endoftext|>"
RATE = 2e-3
STEPS = 2
"""Tokens beyond the next that the head learns to predict."""


def texts(path: Path) -> Iterator[str]:
    """Yield dialogues, then modules of the standard library."""
    with gzip.open(path, "rt") as lines:
        for line in lines:
            turns = json.loads(line)["messages"]
            yield "\n".join(turns)
    for module in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        yield module.read_text(errors="ignore")


def tokenizer(path: Path, out: Path) -> Tokenizer:
    """Return the tokenizer, trained if it is not there yet."""
    file = out / "tokenizer.json"
    if file.exists():
        return Tokenizer.from_file(str(file))
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts(path), trainer)
    made.save(str(file))
    return made


class Head(nn.Module):
    """A head for the tokens after the next one: DeepSeek-V3's, arXiv 2412.19437, section 2.2, as Qwen has it."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        full = config.layer_types.index("full_attention")
        width, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(width, eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(width, eps)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, full)])
        self.norm = Qwen3_5RMSNorm(width, eps)

    def forward(self, embedded: Tensor, hidden: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Map embeddings of tokens and the states before them (B, T, D) to states (B, T, D)."""
        both = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden))
        length = hidden.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mask = torch.zeros(length, length).masked_fill(future, -math.inf)[None, None]
        rows = self.layers[0](
            self.fc(torch.cat(both, -1)), position_embeddings=rotary, attention_mask=mask
        )
        return self.norm(rows)


def config() -> Qwen3_5TextConfig:
    """Return the sizes of the model."""
    return Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        mtp_num_hidden_layers=1,
        attn_implementation="eager",
    )


def losses(model: Qwen3_5ForCausalLM, head: Head, tokens: Tensor) -> Tensor:
    """Return the mean losses (1 + STEPS,) of predicting the next token and those after it, of (B, T) tokens."""
    hidden = model.model(tokens, use_cache=False).last_hidden_state
    weight = model.lm_head.weight
    found = []
    for step in range(1 + STEPS):
        if step:
            hidden = hidden[:, :-1]
            embedded = model.model.embed_tokens(tokens[:, step:])
            positions = torch.arange(hidden.shape[1])[None]
            rotary = model.model.rotary_emb(hidden, positions[None].expand(3, 1, -1))
            hidden = head(embedded, hidden, rotary)
        logits = hidden[:, :-1] @ weight.T
        goal = tokens[:, step + 1 :]
        found.append(functional.cross_entropy(logits.flatten(0, 1), goal.flatten()))
    return torch.stack(found)


def solved(matrix: Tensor, right: Tensor, **options: bool) -> Tensor:
    """Solve a system with 1 on the diagonal and 0 above it, by products: with many small ones that is faster.

    (I + A)^-1 = (I - A)(I + A^2)(I + A^4)..., and A to the power of its size is 0.
    """
    one = torch.eye(matrix.shape[-1])
    power = -(matrix.tril(-1))
    inverse = one + power
    for _ in range(int(math.log2(matrix.shape[-1])) - 1):
        power = power @ power
        inverse = inverse + inverse @ power
    return inverse @ right


def save(model: Qwen3_5ForCausalLM, head: Head, out: Path) -> None:
    """Write the folder."""
    tensors = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    tensors |= {f"mtp.{name}": value for name, value in head.state_dict().items()}
    save_file({k: v.contiguous() for k, v in tensors.items()}, out / "model.safetensors")
    said = model.config.to_dict() | {"architectures": ["Qwen3_5ForCausalLM"]}
    (out / "config.json").write_text(json.dumps(said, indent=1))
    made = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (out / "tokenizer_config.json").write_text(json.dumps(made))


class Run:
    """Training under way, which goes on where it was interrupted."""

    def __init__(self, out: Path, ids: Tensor, minutes: float) -> None:
        self.out, self.ids, self.seconds = out, ids, 60 * minutes
        self.model, self.head = Qwen3_5ForCausalLM(config()), Head(config())
        self.weights = [*self.model.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(
            self.weights, lr=RATE, betas=(0.9, 0.95), weight_decay=0.05
        )
        self.step, self.spent = 0, 0.0
        if (out / "training.pt").exists():
            held = torch.load(out / "training.pt")
            for name in ("model", "head", "optimizer"):
                getattr(self, name).load_state_dict(held[name])
            self.step, self.spent = held["step"], held["spent"]

    def train(self) -> None:
        """Train until the time is over; say every 20 steps how it goes, and keep it every 100."""
        begun, shown = time.monotonic() - self.spent, torch.zeros(1 + STEPS)
        while (spent := time.monotonic() - begun) < self.seconds:
            self.spent = spent
            shown = shown + self._step()
            if self.step % 20 == 0:
                losses = (shown / 20).tolist()
                print(f"step {self.step}, {spent / 60:.1f} min, losses {losses}", flush=True)
                shown = torch.zeros(1 + STEPS)
            if self.step % 100 == 0:
                self.keep()
        self.keep()

    def _step(self) -> Tensor:
        """Take a step, with a rate that rises and then falls along a cosine; return its losses."""
        fallen = 0.5 * (1 + math.cos(math.pi * self.spent / self.seconds))
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * min(1, (self.step + 1) / 100) * (0.05 + 0.95 * fallen)
        starts = torch.randint(len(self.ids) - LENGTH, (ROWS,))
        tokens = torch.stack([self.ids[start : start + LENGTH] for start in starts])
        found = losses(self.model, self.head, tokens)
        self.optimizer.zero_grad()
        (found[0] + 0.3 * found[1:].sum()).backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.step += 1
        return found.detach()

    def keep(self) -> None:
        """Write what training needs to go on, and the model's folder."""
        parts = {name: getattr(self, name).state_dict() for name in ("model", "head", "optimizer")}
        torch.save({**parts, "step": self.step, "spent": self.spent}, self.out / "training.pt")
        save(self.model, self.head, self.out)


def main() -> None:
    """Train, or go on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    made, corpus = tokenizer(args.text, args.out), args.out / "tokens.pt"
    if not corpus.exists():
        ids = [i for text in texts(args.text) for i in (*made.encode(text).ids, 0)]
        torch.save(torch.tensor(ids, dtype=torch.int16), corpus)
    torch.manual_seed(1)
    torch.linalg.solve_triangular = solved  # type: ignore[assignment]
    Run(args.out, torch.load(corpus).long(), args.minutes).train()


if __name__ == "__main__":
    main()
