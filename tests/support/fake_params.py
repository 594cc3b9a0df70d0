"""Parameters of requests to the mock server."""

from aiperf_svc.mock_server.requests import CHAT, RequestParams


def params(
    path: str = CHAT,
    *,
    tokens: int = 3,
    reasoning: int = 0,
    is_stream: bool = True,
    is_cut_short: bool = False,
) -> RequestParams:
    """Return the parameters of a request with seven prompt tokens that asks for usage."""
    return RequestParams(
        path=path,
        model="m",
        is_stream=is_stream,
        tokens=tokens,
        reasoning=reasoning,
        is_cut_short=is_cut_short,
        has_usage=True,
        prompt_tokens=7,
    )
