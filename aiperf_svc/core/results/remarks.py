"""Remarks on an inference run besides its numbers, for the terminal and the report."""

from collections.abc import Iterator

from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.domain.number_text import count, number, significant


def remarks(found: InferenceResult) -> list[str]:
    """Return the remarks, each as a sentence without its full stop."""
    return [*_connection_remarks(found), *_hook_remarks(found), *_prompt_remarks(found)]


def _connection_remarks(found: InferenceResult) -> Iterator[str]:
    """Yield whether latencies exclude connecting or include a proxy, and missing checks."""
    endpoint = found.config_view.endpoint
    ahead = found.value("preconnected_request_count")
    waited = found.value("connected_request_count")
    if ahead:
        text = (
            f"Connections: {number(ahead)} {'was' if ahead == 1 else 'were'} opened in advance; "
            "latencies of first requests on these do not include the time to connect"
        )
        if waited:
            requests = count(int(waited), "request")
            text += f". {requests} waited for a new connection; latencies include this wait"
        yield text
    if endpoint.proxy:
        yield f"Proxy: requests went through {endpoint.proxy}; its time is part of the results"
    if endpoint.url.startswith("https:") and not endpoint.tls.verify:
        yield "TLS: the server's certificate was not checked (endpoint.tls.verify: false)"


def _hook_remarks(found: InferenceResult) -> Iterator[str]:
    """Yield the requests to the server before and after the phases."""
    for call in found.hooks:
        failed = f"; it failed: {call.problem}" if call.problem else ""
        yield f"Called {call.text}: {number(call.took_ms)} ms{failed}"


def _prompt_remarks(found: InferenceResult) -> Iterator[str]:
    """Yield whether prompts were repeated or similar, which a server's cache speeds up, how much
    session trees share, and how the server handled forced output lengths."""
    dataset = found.topology.dataset
    if dataset is None:
        return
    entries, distinct = dataset.entries, dataset.distinct_entries
    used, issued = found.value("distinct_prompt_count"), found.accounts.issued
    if used and (issued > used or distinct not in (None, entries)):
        different = "" if distinct is None else f" ({number(distinct)} of them distinct)"
        yield (
            f"Prompts: {number(used)} of the dataset's {number(entries)} entries{different}, "
            f"each sent {significant(issued / used, 3)} times on average"
        )
    if dataset.streams:
        text = f"Session trees: {number(entries)} with {number(dataset.streams)} agents"
        if (share := dataset.theoretical_prefix_cache_hit) is not None:
            text += f"; an unlimited prefix cache would hold {share:.1%} of their prompts' blocks"
        yield text
    probe = dataset.forced_output_length
    if probe is not None and probe.requests:
        yield (
            f"Probe: {count(probe.requests, 'request')} before the load tested whether the server "
            "accepts ignore_eos and min_tokens; no other number here includes the probe"
        )
    if probe is not None and probe.finding == "refused":
        yield (
            "Output length: before the load, the server refused ignore_eos and min_tokens "
            f"({probe.said}), so requests were sent without them"
        )
