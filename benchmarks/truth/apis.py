"""Compares measurements with the server's record for each streaming API, with the same load of 300
requests/s and 50 events per response.

    python -m benchmarks.truth.apis
    python -m benchmarks.truth.apis --only messages template --json

An event is a token, or a picture for image generation. The figures are those of `benchmarks.truth`.
"""

import sys
from typing import Any

from benchmarks.truth.cases import ISL, TOKENS, Case, Target, run_cases

_TEMPLATE = '{"prompt": {{ text|tojson }}, "stream": true}'


def _case(api: str, *flags: str) -> Case:
    return Case(api, rate=300, duration_s=8, api=("--endpoint-type", api, *flags))


CASES = (
    _case("chat", *ISL),
    Case("chat-http2", rate=300, duration_s=8, http2=True),
    _case("completions", *ISL),
    _case("responses", *ISL),
    _case("messages", *ISL),
    _case("huggingface_generate", *ISL),
    _case(
        "template",
        *(*ISL, "--endpoint", "/v1/completions", "--endpoint-template", _TEMPLATE),
        *("--response-field", "choices[0].text"),
    ),
    _case("audio_transcription", "--audio-length-mean", "0.5", "--num-prompts", "100"),
    _case("image_generation", *ISL, "--extra-inputs", f"partial_images:{TOKENS - 1}"),
)
TARGETS = tuple(Target(case.name, "ttft_error_ms", "p99", 1.0) for case in CASES)


def main() -> int:
    """Run the cases and print them. Return 0 if every target is met."""
    return run_cases(CASES, TARGETS, _show, description=__doc__, word="API")


def _show(results: list[dict[str, Any]], targets: list[dict[str, Any]]) -> None:
    print(f"{'API':22}{'TTFT error, ms':>36}{'ITL error':>18}{'latency':>9}{'lag':>9}")
    names = ("mean", "p50", "p99", "p99.9", "mean", "p99", "p99", "p99")
    print(f"{'':22}" + "".join(f"{name:>9}" for name in names) + "   p99 below 1 ms; verdict")
    for result, target in zip(results, targets, strict=True):
        ttft, gap = result["ttft_error_ms"], result["inter_token_error_ms"]
        values = [ttft[name] for name in ("mean", "p50", "p99", "p99.9")]
        values += [gap["mean"], gap["p99"], result["request_error_ms"]["p99"]]
        values.append(result["schedule_lag_ms"]["p99"])
        outcome = "met" if target["is_met"] else "MISSED"
        print(
            f"{result['case']:22}"
            + "".join(f"{value:>9.3f}" for value in values)
            + f"   {outcome}; {result['verdict']} {' '.join(result['fired'])}"
        )
    pace = results[0]["pace"] if results else ""
    print(f"\n{TOKENS} events a response at {pace}, 300 requests/s; measured less true")


if __name__ == "__main__":
    sys.exit(main())
