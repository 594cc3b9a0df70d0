"""The API of Text Generation Inference: `/generate` and `/generate_stream`."""

from aiperf_svc.mock_server.requests import RequestParams
from aiperf_svc.mock_server.texts import compact, word
from aiperf_svc.mock_server.typed_events import TypedStream


def generate_api(params: RequestParams, created_s: int) -> TypedStream:
    """A response of TGI, which states no time. Its last token's event holds the counts."""
    text = "".join(map(word, range(params.tokens)))
    details: dict[str, object] = {
        "finish_reason": "length" if params.is_cut_short else "eos_token",
        "generated_tokens": params.tokens,
        "seed": None,
    }
    made = TypedStream({"generated_text": text, "details": details | {"prefill": []}})
    ending = {"generated_text": text, "details": details | {"input_length": params.prompt_tokens}}
    for i in range(params.tokens):
        token = {"id": i, "text": word(i), "logprob": -0.5, "special": False}
        is_last = i == params.tokens - 1
        more = ending if is_last else {"generated_text": None, "details": None}
        made.events.append(b"data:%b\n\n" % compact({"index": i + 1, "token": token, **more}))
    return made
