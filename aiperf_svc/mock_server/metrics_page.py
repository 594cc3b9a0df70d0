"""`GET /metrics` of the mock server: a page like vLLM's that matches what the server does.

Counting starts when the page is first read, so a server whose page is not read spends no time on
it. Running and waiting requests come from the account. Tokens are those of complete responses. A
time to first token lasts from the end of the request until the first token is due. A busy server
sends it later than that.
"""

from bisect import bisect_left
from collections.abc import Mapping

BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
"""Upper bounds of the histogram, as in vLLM."""
TTFT = "vllm:time_to_first_token_seconds"


class ServedMetrics:
    """The counts of one process since the page was first read."""

    __slots__ = (
        "generation_tokens",
        "prefix_hits",
        "prefix_queries",
        "prompt_tokens",
        "ttft_counts",
        "ttft_ns",
    )

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.ttft_ns = 0
        self.ttft_counts = [0] * (len(BUCKETS_S) + 1)

    def first_token(self, ttft_ns: int) -> None:
        """Count a first token that is due `ttft_ns` after its request."""
        self.ttft_ns += ttft_ns
        self.ttft_counts[bisect_left(BUCKETS_S, ttft_ns / 1e9)] += 1

    def completed(self, prompt_tokens: int, tokens: int, cached_tokens: int) -> None:
        """Count the tokens of a complete response; cached ones are -1 without a prefix cache."""
        if cached_tokens >= 0:
            self.prefix_queries += prompt_tokens
            self.prefix_hits += cached_tokens
        self.prompt_tokens += prompt_tokens
        self.generation_tokens += tokens

    def values(self) -> list[int]:
        """Return all counts. `render` gets their sums over all processes."""
        return [
            self.prompt_tokens,
            self.generation_tokens,
            self.prefix_queries,
            self.prefix_hits,
            self.ttft_ns,
            *self.ttft_counts,
        ]


def render(
    counters: Mapping[str, int],
    waiting: int,
    values: list[int] | None,
    *,
    model: str,
    started_s: float,
) -> str:
    """Return the page. `counters` are those of all processes since `started_s`. Without `values` it
    has no tokens or times, because a server that responds at once does not count them."""
    quoted = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'engine="0",model_name="{quoted}"'
    lines: list[str] = []

    def add(name: str, kind: str, text: str, value: float) -> None:
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))
        lines.append(f"{name}{{{labels}}} {value}")

    running = counters["in_flight"] - waiting
    add("vllm:num_requests_running", "gauge", "Requests in progress.", running)
    add("vllm:num_requests_waiting", "gauge", "Requests waiting for a slot.", waiting)
    done = counters["completed"]
    add("vllm:request_success_total", "counter", "Completed requests.", done)
    add("vllm:request_success_created", "gauge", "Time at which the counter started.", started_s)
    if values is None:
        return "\n".join(lines) + "\n"
    prompt, generated, queries, hits, ttft_ns, *counts = values
    add("vllm:prompt_tokens_total", "counter", "Prompt tokens of completed requests.", prompt)
    add("vllm:generation_tokens_total", "counter", "Tokens of completed requests.", generated)
    if queries:
        add(
            "vllm:prefix_cache_queries_total",
            "counter",
            "Prompt tokens looked up in the cache.",
            queries,
        )
        add("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the cache.", hits)
    lines += [f"# HELP {TTFT} Time to first token in seconds.", f"# TYPE {TTFT} histogram"]
    total = 0
    for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), counts, strict=True):
        total += count
        lines.append(f'{TTFT}_bucket{{{labels},le="{bound}"}} {total}')
    lines += [f"{TTFT}_sum{{{labels}}} {ttft_ns / 1e9}", f"{TTFT}_count{{{labels}}} {total}"]
    return "\n".join(lines) + "\n"
