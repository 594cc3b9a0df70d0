"""Streams as servers send them, with what a strict reader trips over: comments, empty lists of
choices, nulls, members of their own, a role in every event, a usage with the finish reason.

llama.cpp's were recorded from a server of ours, byte for byte but for ids; the others are in the
form that the servers' sources and references show.
"""

import re

import pytest

from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.outcomes import ErrorKind
from tests.support.raw_batches import (
    LAST_CHUNK,
    STREAM_HEAD,
    Read,
    Request,
    chunk,
    record_of,
    stamp_of,
)

LENGTH, STOP, TOOL_CALLS = FinishReason.LENGTH, FinishReason.STOP, FinishReason.TOOL_CALLS

LLAMA_CPP_COMPLETIONS = rb"""data: {"choices":[{"text":" InteractiveConsole","index":0,"logprobs":null,"finish_reason":null}],"created":1795419678,"model":"tiny","system_fingerprint":"b1-0c1e570","object":"text_completion","id":"chatcmpl-T3"}

data: {"choices":[{"text":"au","index":0,"logprobs":null,"finish_reason":null}],"created":1795419678,"model":"tiny","system_fingerprint":"b1-0c1e570","object":"text_completion","id":"chatcmpl-T3"}

data: {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"length"}],"created":1795419678,"model":"tiny","system_fingerprint":"b1-0c1e570","object":"text_completion","usage":{"completion_tokens":2,"prompt_tokens":2,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":0}},"id":"chatcmpl-T3","timings":{"cache_n":0,"prompt_n":2,"prompt_ms":2.679,"prompt_per_token_ms":1.3395,"prompt_per_second":746.5472191116089,"predicted_n":2,"predicted_ms":0.528,"predicted_per_token_ms":0.528,"predicted_per_second":1893.9393939393938}}

data: [DONE]

"""  # noqa: E501
LLAMA_CPP_RESPONSES = rb"""event: response.created
data: {"type":"response.created","response":{"id":"resp_1","object":"response","status":"in_progress"}}

event: response.in_progress
data: {"type":"response.in_progress","response":{"id":"resp_1","object":"response","status":"in_progress"}}

event: response.output_item.added
data: {"type":"response.output_item.added","item":{"content":[],"id":"msg_1","role":"assistant","status":"in_progress","type":"message"}}

event: response.content_part.added
data: {"type":"response.content_part.added","item_id":"msg_1","part":{"type":"output_text","text":""}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_1","delta":" cache"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_1","delta":"consume"}

event: response.output_text.done
data: {"type":"response.output_text.done","item_id":"msg_1","text":" cacheconsume"}

event: response.content_part.done
data: {"type":"response.content_part.done","item_id":"msg_1","part":{"type":"output_text","annotations":[],"logprobs":[],"text":" cacheconsume"}}

event: response.output_item.done
data: {"type":"response.output_item.done","item":{"type":"message","status":"completed","id":"msg_1","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":" cacheconsume"}],"role":"assistant"}}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","object":"response","created_at":1795419678,"status":"completed","model":"tiny","output":[{"type":"message","status":"completed","id":"msg_1","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":" cacheconsume"}],"role":"assistant"}],"usage":{"input_tokens":9,"output_tokens":2,"total_tokens":11,"input_tokens_details":{"cached_tokens":0}}},"timings":{"cache_n":0,"prompt_n":9,"prompt_ms":8.249,"predicted_n":2,"predicted_ms":0.586}}

"""  # noqa: E501
LLAMA_CPP_MESSAGES = rb"""event: message_start
data: {"type":"message_start","message":{"id":"chatcmpl-q","type":"message","role":"assistant","content":[],"model":"tiny","stop_reason":null,"stop_sequence":null,"usage":{"cache_read_input_tokens":8,"input_tokens":1,"output_tokens":0}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"tml"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" SUP"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":{"output_tokens":2}}

event: message_stop
data: {"type":"message_stop"}

"""  # noqa: E501
OLLAMA = rb"""data: {"id":"chatcmpl-321","object":"chat.completion.chunk","created":1728,"model":"qwen3","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"Hm"},"finish_reason":null}]}

data: {"id":"chatcmpl-321","object":"chat.completion.chunk","created":1728,"model":"qwen3","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":null}]}

data: {"id":"chatcmpl-321","object":"chat.completion.chunk","created":1728,"model":"qwen3","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"!"},"finish_reason":null}]}

data: {"id":"chatcmpl-321","object":"chat.completion.chunk","created":1728,"model":"qwen3","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}

data: {"id":"chatcmpl-321","object":"chat.completion.chunk","created":1728,"model":"qwen3","system_fingerprint":"fp_ollama","choices":[],"usage":{"prompt_tokens":26,"completion_tokens":4,"total_tokens":30}}

data: [DONE]

"""  # noqa: E501
SGLANG = rb"""data: {"id":"4c1","object":"chat.completion.chunk","created":1750,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"4c1","object":"chat.completion.chunk","created":1750,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":"Sure","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"4c1","object":"chat.completion.chunk","created":1750,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":".","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}

data: {"id":"4c1","object":"chat.completion.chunk","created":1750,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":"stop","matched_stop":128009}],"usage":null}

data: {"id":"4c1","object":"chat.completion.chunk","created":1750,"model":"m","choices":[],"usage":{"prompt_tokens":36,"total_tokens":39,"completion_tokens":3,"prompt_tokens_details":null,"reasoning_tokens":0}}

data: [DONE]

"""  # noqa: E501
VLLM = rb"""data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1757,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":11,"total_tokens":11,"completion_tokens":0},"prompt_token_ids":null}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1757,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":"Hm"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":11,"total_tokens":12,"completion_tokens":1}}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1757,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"id":"chatcmpl-tool-1","type":"function","index":0,"function":{"name":"get_weather"}}]},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":11,"total_tokens":16,"completion_tokens":5}}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1757,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\": "}}]},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":11,"total_tokens":19,"completion_tokens":8}}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1757,"model":"m","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"tool_calls","stop_reason":null,"token_ids":null}],"usage":{"prompt_tokens":11,"total_tokens":23,"completion_tokens":12}}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1757,"model":"m","choices":[],"usage":{"prompt_tokens":11,"total_tokens":23,"completion_tokens":12}}

data: [DONE]

"""  # noqa: E501
OPENAI = rb"""data: {"id":"chatcmpl-C","object":"chat.completion.chunk","created":1756,"model":"gpt-4o","service_tier":"default","system_fingerprint":null,"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"0UaqXoXgSBB4mh"}

data: {"id":"chatcmpl-C","object":"chat.completion.chunk","created":1756,"model":"gpt-4o","service_tier":"default","system_fingerprint":null,"choices":[{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"JEP"}

data: {"id":"chatcmpl-C","object":"chat.completion.chunk","created":1756,"model":"gpt-4o","service_tier":"default","system_fingerprint":null,"choices":[{"index":0,"delta":{"content":"!"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"d5Rk[Uo1"}

data: {"id":"chatcmpl-C","object":"chat.completion.chunk","created":1756,"model":"gpt-4o","service_tier":"default","system_fingerprint":null,"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null,"obfuscation":"AbX"}

data: {"id":"chatcmpl-C","object":"chat.completion.chunk","created":1756,"model":"gpt-4o","service_tier":"default","system_fingerprint":null,"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":9,"total_tokens":17,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},"obfuscation":"NyQ"}

data: [DONE]

"""  # noqa: E501
AZURE = rb"""data: {"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[{"prompt_index":0,"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}}]}

data: {"choices":[{"content_filter_results":{},"delta":{"content":"","refusal":null,"role":"assistant"},"finish_reason":null,"index":0,"logprobs":null}],"created":1746,"id":"chatcmpl-B","model":"gpt-4o","object":"chat.completion.chunk","system_fingerprint":"fp_e"}

data: {"choices":[{"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}},"delta":{"content":"Hi"},"finish_reason":null,"index":0,"logprobs":null}],"created":1746,"id":"chatcmpl-B","model":"gpt-4o","object":"chat.completion.chunk","system_fingerprint":"fp_e"}

data: {"choices":[{"content_filter_results":{},"delta":{"content":" you"},"finish_reason":null,"index":0,"logprobs":null}],"created":1746,"id":"chatcmpl-B","model":"gpt-4o","object":"chat.completion.chunk","system_fingerprint":"fp_e"}

data: {"choices":[{"content_filter_results":{},"delta":{},"finish_reason":"stop","index":0,"logprobs":null}],"created":1746,"id":"chatcmpl-B","model":"gpt-4o","object":"chat.completion.chunk","system_fingerprint":"fp_e"}

data: {"choices":[],"created":1746,"id":"chatcmpl-B","model":"gpt-4o","object":"chat.completion.chunk","system_fingerprint":"fp_e","usage":{"completion_tokens":2,"prompt_tokens":19,"total_tokens":21}}

data: [DONE]

"""  # noqa: E501
DEEPSEEK = rb""": keep-alive

: keep-alive

data: {"id":"8d","object":"chat.completion.chunk","created":1737,"model":"deepseek-reasoner","system_fingerprint":"fp_7","choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":""},"logprobs":null,"finish_reason":null}]}

data: {"id":"8d","object":"chat.completion.chunk","created":1737,"model":"deepseek-reasoner","system_fingerprint":"fp_7","choices":[{"index":0,"delta":{"content":null,"reasoning_content":"First"},"logprobs":null,"finish_reason":null}]}

: keep-alive

data: {"id":"8d","object":"chat.completion.chunk","created":1737,"model":"deepseek-reasoner","system_fingerprint":"fp_7","choices":[{"index":0,"delta":{"content":"9.8","reasoning_content":null},"logprobs":null,"finish_reason":null}]}

data: {"id":"8d","object":"chat.completion.chunk","created":1737,"model":"deepseek-reasoner","system_fingerprint":"fp_7","choices":[{"index":0,"delta":{"content":"","reasoning_content":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":1},"prompt_cache_hit_tokens":0,"prompt_cache_miss_tokens":12}}

data: [DONE]

"""  # noqa: E501
TGI_CHAT = rb"""data: {"object":"chat.completion.chunk","id":"","created":1739,"model":"m","system_fingerprint":"3.1.0-native","choices":[{"index":0,"delta":{"role":"assistant","content":"Deep"},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"object":"chat.completion.chunk","id":"","created":1739,"model":"m","system_fingerprint":"3.1.0-native","choices":[{"index":0,"delta":{"role":"assistant","content":" learning"},"logprobs":null,"finish_reason":"length"}],"usage":null}

data: {"object":"chat.completion.chunk","id":"","created":1739,"model":"m","system_fingerprint":"3.1.0-native","choices":[],"usage":{"prompt_tokens":37,"completion_tokens":2,"total_tokens":39}}

data: [DONE]

"""  # noqa: E501
ANTHROPIC_TOOL = rb"""event: message_start
data: {"type":"message_start","message":{"id":"msg_2","type":"message","role":"assistant","content":[],"model":"claude","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"cache_creation_input_tokens":400,"cache_read_input_tokens":69,"output_tokens":2,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Let me"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQBCgIYAhIM"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"get_weather","input":{}}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"location\":"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":89}}

event: message_stop
data: {"type":"message_stop"}

"""  # noqa: E501

EACH = pytest.mark.parametrize(
    ("kind", "raw", "usage", "finish", "chunks"),
    [
        pytest.param("completions", LLAMA_CPP_COMPLETIONS, (2, 2), LENGTH, 2, id="llama.cpp"),
        pytest.param("responses", LLAMA_CPP_RESPONSES, (9, 2), STOP, 2, id="llama.cpp responses"),
        pytest.param("messages", LLAMA_CPP_MESSAGES, (9, 2), LENGTH, 2, id="llama.cpp messages"),
        pytest.param("chat", OLLAMA, (26, 4), STOP, 3, id="Ollama"),
        pytest.param("chat", SGLANG, (36, 3), STOP, 2, id="SGLang"),
        pytest.param("chat", VLLM, (11, 12), TOOL_CALLS, 3, id="vLLM"),
        pytest.param("chat", OPENAI, (8, 9), STOP, 2, id="OpenAI"),
        pytest.param("chat", AZURE, (19, 2), STOP, 2, id="Azure"),
        pytest.param("chat", DEEPSEEK, (12, 3), STOP, 2, id="DeepSeek"),
        pytest.param("chat", TGI_CHAT, (37, 2), LENGTH, 2, id="TGI"),
        pytest.param("messages", ANTHROPIC_TOOL, (472, 89), TOOL_CALLS, 3, id="Anthropic"),
    ],
)
"""The kind, the stream, its tokens of input and output, its end, and its events with output."""


def pieces(raw: bytes, size: int) -> list[Read]:
    """The stream as reads of so many bytes, a chunk each; 0: an event each."""
    parts = [raw[at : at + size] for at in range(0, len(raw), size)] if size else []
    parts = parts or [event + b"\n\n" for event in raw.split(b"\n\n")[:-1]]
    reads = [Read(chunk(part), stamp_of(100 + place)) for place, part in enumerate(parts)]
    reads[0].data = STREAM_HEAD + reads[0].data
    reads[-1].data += LAST_CHUNK
    return reads


@EACH
@pytest.mark.parametrize("size", [0, 7, 100, 10_000])
def test_however_it_comes_it_is_read_to_its_end(
    kind: str, raw: bytes, usage: tuple[int, int], finish: FinishReason, chunks: int, size: int
) -> None:
    row = record_of(Request(reads=pieces(raw, size)), kind=kind).rows[0]
    assert (row["usage_prompt_tokens"], row["usage_completion_tokens"]) == usage
    assert (row["error"], row["finish_reason"], row["chunks"]) == (ErrorKind.NONE, finish, chunks)


@EACH
def test_with_other_line_ends_it_is_the_same(
    kind: str, raw: bytes, usage: tuple[int, int], finish: FinishReason, chunks: int
) -> None:
    for end in (b"\r\n", b"\r"):
        whole = pieces(raw.replace(b"\n", end), 10_000)
        row = record_of(Request(reads=whole), kind=kind).rows[0]
        assert (row["error"], row["chunks"]) == (ErrorKind.NONE, chunks)
        assert row["usage_completion_tokens"] == usage[1]


@EACH
def test_cut_before_its_end_it_is_an_error(
    kind: str, raw: bytes, usage: tuple[int, int], finish: FinishReason, chunks: int
) -> None:
    # Before the first event with a reason of the end, and without [DONE].
    at = re.search(rb'"(finish|stop)_reason":"|response\.completed', raw)
    assert at is not None
    begun = raw[: raw.rfind(b"\n\n", 0, at.start()) + 2]
    row = record_of(Request(reads=pieces(begun, 0)), kind=kind).rows[0]
    assert row["error"] == ErrorKind.DISCONNECTED


@pytest.mark.parametrize(
    ("kind", "event", "said"),
    [
        (
            "chat",
            b'data: {"error": {"object": "error", "message": "CUDA out of memory", "type": '
            b'"InternalServerError", "param": null, "code": 500}}\n\n',
            "CUDA out of memory",
        ),
        ("chat", b'data: {"error":"too busy","error_type":"generation"}\n\n', "too busy"),
        (
            "chat",
            b'data: {"object":"error","message":"engine died","type":"InternalServerError"}\n\n',
            "engine died",
        ),
        (
            "chat",
            b'error: {"code":500,"message":"slot lost","type":"server_error"}\n\n'
            b'data: {"error":{"code":500,"message":"slot lost","type":"server_error"}}\n\n',
            "slot lost",
        ),
        (
            "messages",
            b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error",'
            b'"message":"Overloaded"}}\n\n',
            "Overloaded",
        ),
    ],
    ids=["SGLang", "TGI", "vLLM", "llama.cpp", "Anthropic"],
)
def test_an_error_in_the_middle_is_the_servers(kind: str, event: bytes, said: str) -> None:
    begun = {"chat": OLLAMA, "messages": LLAMA_CPP_MESSAGES}[kind].split(b"\n\n")[:2]
    raw = b"\n\n".join(begun) + b"\n\n" + event
    record = record_of(Request(reads=pieces(raw, 0)), kind=kind)
    assert record.rows[0]["error"] == ErrorKind.SERVER
    assert record.errors[0].message == said
