"""Makes the models that the suite is run with: random weights in the shape of its stories260K, which is on a hub only.

A vocabulary of 512 pieces is learnt from this repository's documentation, so texts have about as many tokens as there.
Control tokens and single bytes have rows of zeros in the head and are all but never drawn, as in a model that was
trained on stories: what the suite asks of lengths can be seen, what it asks of words cannot.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from forerun.text.gguf_tokenizer import TokenType

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCABULARY, CONTEXT = 64, 5, 2, 1, 192, 512, 16384
FILL = ("<PRE>", "<SUF>", "<MID>")
"""Tokens of the second model, which fills text in."""
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% endif %}"
)
"""What llama-server takes for a model without a template."""


def make(path: Path, *, fills_in: bool, seed: int = 0) -> Path:
    """Write a model."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_chat_template(TEMPLATE)
    quiet = _add_vocabulary(writer, FILL if fills_in else ())
    for name, values in _weights(quiet, np.random.default_rng(seed)).items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter, fill: tuple[str, ...]) -> int:
    """A vocabulary as SentencePiece writes it; how many tokens at its beginning are not to be drawn."""
    special = ["<unk>", "<s>", "</s>", *fill]
    start = len(special) + 256
    pieces = _pieces(VOCABULARY - start)
    kinds = [TokenType.UNKNOWN, *[TokenType.CONTROL] * (len(special) - 1)]
    kinds += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(pieces)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces])
    writer.add_token_scores([0.0] * start + [-float(i) for i in range(len(pieces))])
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    for i, name in enumerate(("fim_pre", "fim_suf", "fim_mid") if fill else (), 3):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", i)
    return start


def _pieces(count: int) -> list[str]:
    """The pieces of a byte-pair encoding, those that are made first at the front."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    folder = Path(__file__).parents[3] / "docs"
    files = [str(path) for path in sorted(folder.glob("*.md"))]
    alphabet = [chr(code) for code in range(33, 127)] + ["▁"]
    trainer = trainers.BpeTrainer(
        vocab_size=count, limit_alphabet=len(alphabet), initial_alphabet=alphabet
    )
    learner.train(files, trainer)
    found = sorted(learner.get_vocab().items(), key=lambda pair: pair[1])
    singles = [piece for piece, _ in found if len(piece) == 1]
    return [*(piece for piece, _ in found if len(piece) > 1), *singles]


def _weights(quiet: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)

    ones = np.ones(HIDDEN)
    head = matrix(VOCABULARY, HIDDEN, 4.0)
    head[:quiet] = 0.0
    found = {
        "token_embd.weight": matrix(VOCABULARY, HIDDEN, 8.0),
        "output.weight": head,
        "output_norm.weight": ones,
    }
    for layer in range(LAYERS):
        width = HIDDEN // HEADS * KV_HEADS
        own = {
            "attn_norm": ones,
            "ffn_norm": ones,
            "attn_q": matrix(HIDDEN, HIDDEN),
            "attn_k": matrix(width, HIDDEN),
            "attn_v": matrix(width, HIDDEN),
            "attn_output": matrix(HIDDEN, HIDDEN),
            "ffn_gate": matrix(FFN, HIDDEN),
            "ffn_up": matrix(FFN, HIDDEN),
            "ffn_down": matrix(HIDDEN, FFN),
        }
        found |= {f"blk.{layer}.{name}.weight": values for name, values in own.items()}
    return found
