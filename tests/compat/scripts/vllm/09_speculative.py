from vllm import LLM, SamplingParams
from vllm.v1.metrics.reader import Counter, Vector

llm = LLM(
    model="MODEL",
    speculative_config={"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
    disable_log_stats=False,
    max_model_len=512,
)
llm.generate(["a b c d " * 12], SamplingParams(temperature=0, max_tokens=32))
drafts = accepted = 0
by_position = []
for metric in llm.get_metrics():
    if metric.name == "vllm:spec_decode_num_drafts" and isinstance(metric, Counter):
        drafts += metric.value
    elif metric.name == "vllm:spec_decode_num_accepted_tokens" and isinstance(metric, Counter):
        accepted += metric.value
    elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos" and isinstance(
        metric, Vector
    ):
        by_position += metric.values
print(drafts > 0, 1 + accepted / drafts > 1.5, sum(by_position) == accepted)
