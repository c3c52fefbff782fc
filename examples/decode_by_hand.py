"""Speculative decoding by hand: the loop that the engine runs for many sequences, here for one, from the same parts.

python examples/decode_by_hand.py "one, two, three, four, five, six. Again: one, two,"
"""

import sys

from forerun.core.batch import Batch, Segment
from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, Seq
from forerun.decoding.processors import LogitsPipeline
from forerun.decoding.verify import verify
from forerun.drafters.base.contract import Target
from forerun.drafters.base.spec import DrafterSpec
from forerun.hub.names import resolve
from forerun.model.loader import load_model
from forerun.weights.checkpoint import open_checkpoint

MAX_LEN, NUM_DRAFT = 1024, 5
text = (
    sys.argv[1]
    if len(sys.argv) > 1
    else "Monday, Tuesday, Wednesday, Thursday, Friday. Again: Monday, Tuesday,"
)

checkpoint = open_checkpoint(resolve("smollm2-135m-instruct"))
model, tokenizer = load_model(checkpoint), checkpoint.tokenizer()
params = SamplingParams(temperature=0, max_tokens=64)
seq = Seq(0, tokenizer.encode(text), params, seed=0)
pipeline = LogitsPipeline(params, seq.tokens, noise=seq.noise, eos_ids=tokenizer.eos_ids)
drafter = DrafterSpec.of("suffix").build(Target(model, tokenizer, 1, MAX_LEN))
cache = model.new_cache(1, MAX_LEN)
seq.slot, _ = cache.open(seq.tokens)

passes = accepted = 0
while len(seq.generated) < params.max_tokens and not tokenizer.eos_ids & {*seq.generated}:
    # A pass computes what the cache has not: the prompt, later the last token; and the draft below it.
    pending = seq.tokens[cache.length(seq.slot) :]
    draft = drafter.propose([seq], [NUM_DRAFT])[0] if passes else EMPTY_DRAFT
    count = len(pending)
    parents = (*range(-1, count - 1), *(count + parent for parent in draft.parents))
    rows = Segment(seq.slot, cache.length(seq.slot), (*pending, *draft.tokens), parents)
    hidden = model.forward(Batch((rows,)), cache)
    logits = model.head(hidden.last[count - 1 :])  # of the last token, and of every drafted one
    outcome = verify(seq, draft, logits, pipeline)
    # The cache keeps the rows of what was pending and of the accepted path.
    cache.keep(seq.slot, [*range(count), *(count + node for node in outcome.path)])
    seq.tokens += outcome.emitted
    if passes:
        drafter.observe([seq], [draft], [outcome])
    else:
        drafter.begin(seq, outcome)
    passes, accepted = passes + 1, accepted + len(outcome.path)

print(tokenizer.decode(seq.tokens))
print(
    f"{len(seq.generated) / passes:.2f} tokens per pass, {accepted} of {len(seq.generated)} drafted"
)
