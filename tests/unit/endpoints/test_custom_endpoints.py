"""Templates and raw payloads: bodies, the location of the output, and rejected settings."""

import json
from typing import Any

import pytest

from aiperf_svc.config import templates
from aiperf_svc.config.endpoint import Endpoint as Options
from aiperf_svc.core.endpoints.base import UNREADABLE, Endpoint, MalformedResponse, Prompt
from aiperf_svc.core.endpoints.custom import custom_problems
from aiperf_svc.core.endpoints.registry import endpoint_of

FULL = (
    '{"m": {{ model|tojson }}, "p": {{ text|tojson }}, "n": {{ max_tokens|tojson }}, '
    '"s": {{ stream|lower }}, "all": {{ texts|tojson }}, "ranked": {{ passages|tojson }}}'
)


def options(template: str = FULL, **changes: object) -> Options:
    defaults = {"url": "http://h:1", "model": "x", "type": "template", "template": template}
    return Options.model_validate(defaults | changes)


def raw(**changes: object) -> Endpoint:
    return endpoint_of(options(type="raw", template=None, **changes))  # type: ignore[arg-type]


def body(endpoint: Options, prompt: Prompt) -> Any:
    return json.loads(endpoint_of(endpoint).render(prompt, endpoint).whole)


def test_template_has_texts_model_and_length() -> None:
    prompt = Prompt(texts=('say "hi"', "b"), passages=("c",), output_tokens=7)
    assert body(options(streaming=True), prompt) == {
        "m": "x",
        "p": 'say "hi"',
        "n": 7,
        "s": True,
        "all": ['say "hi"', "b"],
        "ranked": ["c"],
    }


def test_any_text_survives_the_template() -> None:
    text = "<a href='x'> & \n\t\"\\ é 漢 \U0001f600 \x01"
    assert body(options('{"q": {{ text|tojson }}}'), Prompt(texts=(text,))) == {"q": text}


def test_extra_inputs_come_last_and_null_removes() -> None:
    endpoint = options('{"a": 1, "b": {{ text|tojson }}}', extra_inputs={"a": None, "c": 2})
    assert body(endpoint, Prompt(texts=("x",))) == {"b": "x", "c": 2}


def test_length_is_requested_under_a_supported_name() -> None:
    endpoint = options('{"max_new_tokens": {{ max_tokens }}, "t": {{ text|tojson }}}')
    prompt = Prompt(texts=("x",), output_tokens=9)
    assert endpoint_of(endpoint).render(prompt, endpoint).requested_tokens == 9


def test_raw_payload_is_sent_unchanged() -> None:
    payload = {"z": [1, {"a": None}], "model": "other", "stream": False}
    sent = raw().render(Prompt(payload=payload), options())
    assert json.loads(sent.whole) == payload


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"template": "{{ text"}, "endpoint.template: line 1: "),
        ({"template": '{\n"a": {% if %}'}, "endpoint.template: line 2: "),
        ({"template": '{"a": {{ image|tojson }}}'}, "endpoint.template: unknown variable image; "),
        ({"template": "{{ 1 / 0 }}"}, "endpoint.template: division by zero"),
        ({"template": '{"a": {{ text }}}'}, "endpoint.template: renders no JSON "),
        ({"template": "[" * 100_000}, "endpoint.template: renders no JSON "),
        ({"template": "{{ 'a' * 9000000000 }}"}, "endpoint.template: takes over 1 GiB of memory"),
        ({"template": "{{ 9 ** 99999 }}"}, "endpoint.template: a ** with a result of over"),
        ({"template": "[1]", "extra_inputs": {"a": 1}}, "endpoint.extra_inputs: the template"),
        ({"response_field": "a["}, "endpoint.response_field: 'a[': no JMESPath query: "),
        ({"output_tokens_field": "("}, "endpoint.output_tokens_field: '(': no JMESPath query: "),
    ],
)
def test_broken_description_is_found_before_the_run(changes: dict[str, Any], problem: str) -> None:
    (found,) = custom_problems(options(**changes))
    assert found.startswith(problem)
    assert "\n" not in found


def test_valid_description_has_no_problems() -> None:
    assert custom_problems(options()) == []
    assert custom_problems(options(type="raw", template=None)) == []  # type: ignore[arg-type]


def test_endless_template_is_found_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MAX_S", 0.1)
    loop = "{% for a in range(99999) %}"
    (found,) = custom_problems(options(loop * 2 + "{% endfor %}" * 2))
    assert found == (
        "endpoint.template: takes over 0.1 s of CPU time for one prompt; make its loops shorter"
    )


def test_a_template_cannot_reach_this_program() -> None:
    endpoint = options("{{ text.__class__.__mro__ }}")
    (found,) = custom_problems(endpoint)
    assert "unsafe" in found


@pytest.mark.parametrize(
    ("kind", "prompt", "message"),
    [
        ("raw", Prompt(texts=("x",)), "this has none"),
        ("template", Prompt(payload={"a": 1}), "expected endpoint.type raw"),
    ],
)
def test_prompts_of_the_other_type_are_refused(kind: str, prompt: Prompt, message: str) -> None:
    endpoint = options() if kind == "template" else options(type="raw", template=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        endpoint_of(endpoint).render(prompt, endpoint)


@pytest.mark.parametrize(
    "response",
    [
        '{"text": "hi"}',
        '{"output": "hi"}',
        '{"generated_text": "hi"}',
        '{"model_name": "m", "text_output": "hi"}',
        '{"choices": [{"text": "hi"}]}',
        '{"choices": [{"message": {"content": "hi"}}]}',
        '{"choices": [{"delta": {"content": "hi"}}]}',
    ],
)
def test_texts_are_found_in_the_usual_places(response: str) -> None:
    assert raw().parse_body(response.encode()).content == "hi"


@pytest.mark.parametrize(
    ("response", "items"),
    [
        ('{"data": [{"embedding": [0.1, 2]}, {"embedding": [1, 2]}]}', 2),
        ('{"embeddings": [[0.1], [0.2], [0.3]]}', 3),
        ('{"embedding": [0.1, 0.2, 0.3]}', 1),
        ('{"rankings": [{"index": 0}, {"index": 1}]}', 2),
        ('{"results": [{"index": 0}]}', 1),
    ],
)
def test_vectors_and_scores_are_counted(response: str, items: int) -> None:
    assert raw().parse_body(response.encode()).items == items


def test_query_finds_the_output_and_another_the_tokens() -> None:
    api = raw(response_field="out[0].t", output_tokens_field="stats.made")
    delta = api.parse_body(b'{"text": "not this", "out": [{"t": "this"}], "stats": {"made": 12}}')
    assert (delta.content, delta.completion_tokens) == ("this", 12)
    usual = raw().parse_body(b'{"text": "a", "usage": {"input_tokens": 3, "output_tokens": 4}}')
    assert (usual.prompt_tokens, usual.completion_tokens) == (3, 4)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"candidatesTokenCount": 5}, (5, -1)),
        ({"candidatesTokenCount": 5, "thoughtsTokenCount": 100}, (105, 100)),
        ({"thoughtsTokenCount": 100}, (100, 100)),
        ({}, (-1, -1)),
    ],
)
def test_thoughts_of_gemini_are_output(counts: dict[str, int], expected: tuple[int, int]) -> None:
    total = {"promptTokenCount": 50, "totalTokenCount": 50 + sum(counts.values())}
    response = {"text": "a", "usageMetadata": counts | total}
    delta = raw().parse_body(json.dumps(response).encode())
    assert (delta.completion_tokens, delta.reasoning_tokens) == expected


def test_response_without_the_queried_place_names_the_query() -> None:
    with pytest.raises(MalformedResponse, match=r"no output at 'a\.b' \(endpoint\.response_field"):
        raw(response_field="a.b").parse_body(b'{"text": "x"}')
    with pytest.raises(MalformedResponse, match="no output in the usual places"):
        raw().parse_body(b'{"other": 1}')


def test_failing_query_function_makes_the_response_malformed() -> None:
    with pytest.raises(MalformedResponse, match=r"length\(\)"):
        raw(response_field="length(missing)").parse_body(b'{"text": "x"}')
    with pytest.raises(MalformedResponse, match=r"length\(\)"):
        raw(output_tokens_field="length(missing)").parse_event(b'{"text": "x"}')


def test_zero_is_output_and_empty_is_not() -> None:
    assert raw(response_field="score").parse_body(b'{"score": 0}').content == "0"
    for empty in (b'""', b"[]", b"{}", b"null"):
        with pytest.raises(MalformedResponse, match="no output at 'score'"):
            raw(response_field="score").parse_body(b'{"score": %s}' % empty)


def test_event_without_output_has_no_token() -> None:
    assert not raw().parse_event(b'{"choices": [{"delta": {"role": "assistant"}}]}').has_output
    assert not raw().parse_event(b'{"status": "busy", "error": null, "detail": null}').error
    assert raw().parse_event(b'{"error": {"message": "no"}}').error == "no"
    assert raw().parse_body(b'{"error": {"message": "no"}}').error == "no"
    with pytest.raises(UNREADABLE):
        raw().parse_event(b"{")


@pytest.mark.parametrize("member", ["delta", "message"])
def test_reasoning_and_tool_calls_are_output(member: str) -> None:
    calls = '[{"function": {"name": "f", "arguments": "{}"}}]'
    for text, expected in (
        ('{"content": null, "reasoning_content": "hm"}', ("", "hm", "")),
        (f'{{"content": "", "tool_calls": {calls}}}', ("", "", "f{}")),
        ('{"content": [{"type": "text", "text": "hi"}]}', ("hi", "", "")),
    ):
        response = f'{{"choices": [{{"{member}": {text}}}], "usage": {{"completion_tokens": 3}}}}'
        delta = raw(output_tokens_field="usage.completion_tokens").parse_body(response.encode())
        assert (delta.content, delta.reasoning, delta.tool_calls) == expected
        assert (delta.has_output, delta.completion_tokens) == (True, 3)


def test_users_query_overrides_the_chat_format() -> None:
    event = b'{"choices": [{"delta": {"content": "a", "reasoning_content": "b"}}]}'
    delta = raw(response_field="choices[0].delta.content").parse_event(event)
    assert (delta.content, delta.reasoning) == ("a", "")


def test_several_choices_are_noticed() -> None:
    event = b'{"choices": [{"index": 2, "delta": {"content": "a"}, "finish_reason": null}]}'
    assert raw().parse_event(event).choice == 2
    body = b'{"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]}'
    assert raw().parse_body(body).choice == 1
