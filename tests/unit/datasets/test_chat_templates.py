"""Token counts with a chat template: loading, exact lengths, and rejected templates."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.datasets.tokenizers import LibraryTokenCounter, load_chat_template
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.datasets.assembly import Source, assemble, synthetic_prompts
from aiperf_svc.core.datasets.base import ChatTemplate, PromptConversation, PromptTurn
from aiperf_svc.core.datasets.templated import templated_tokens
from aiperf_svc.core.endpoints.base import Prompt
from aiperf_svc.domain.errors import ConfigError, DatasetError

Config = Callable[..., BenchmarkConfig]

TEMPLATE = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role not in ("system", "user", "assistant") %}
        {{- raise_exception("no role " + message.role) }}
    {%- endif %}
    {{- "\n### " + message.role + ":\n" + message.content }}
{%- endfor %}
{%- if tools %}{{ "\n### tools: " + tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ "\n### assistant:\n" }}{% endif %}"""


def template_in(folder: Path, **settings: Any) -> ChatTemplate:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load(folder)


def load(folder: Path) -> ChatTemplate:
    return load_chat_template(
        "m", lambda name: found if (found := folder / name).is_file() else None
    )


@pytest.fixture
def templated(counter: LibraryTokenCounter, tmp_path: Path) -> LibraryTokenCounter:
    template = template_in(tmp_path, chat_template=TEMPLATE, bos_token={"content": "<s>"})
    return LibraryTokenCounter("tiny", counter._tokenizer, template)


def test_template_adds_special_tokens_tools_and_response_start(tmp_path: Path) -> None:
    template = template_in(tmp_path, chat_template=TEMPLATE, bos_token="<s>")
    messages = [{"role": "user", "content": "é"}]
    assert template(messages) == "<s>\n### user:\né\n### assistant:\n"
    assert template(messages, tools=[{"a": "é"}], add_generation_prompt=False) == (
        '<s>\n### user:\né\n### tools: [{"a": "é"}]'
    )


def test_template_may_be_file_or_named_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert template_in(tmp_path, chat_template=named)([]) == "yes"
    (tmp_path / "chat_template.jinja").write_text("own")
    assert load(tmp_path)([]) == "own"


def test_a_template_is_rendered_as_transformers_renders_it(tmp_path: Path) -> None:
    """With a training marker around responses, and empty documents."""
    text = """{%- if documents is not none %}with documents {% endif -%}
{%- for message in messages -%}
    {%- if message.role == "assistant" -%}
        {%- generation -%} {{- message.content -}} {%- endgeneration -%}
    {%- else -%} {{- message.role + ": " + message.content -}} {%- endif -%}
{%- endfor -%}"""
    template = template_in(tmp_path, chat_template=text)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert template(messages) == "user: ab"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "'m' has no chat template; expected one in chat_template.jinja or"),
        ({"chat_template": "{% for %}"}, "the chat template of 'm': Expected"),
    ],
)
def test_a_tokenizer_without_a_template_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        template_in(tmp_path, **settings)


def test_refused_or_unsafe_template_is_one_error(tmp_path: Path) -> None:
    template = template_in(tmp_path, chat_template=TEMPLATE)
    with pytest.raises(ConfigError, match="no role tool; leave this out"):
        template([{"role": "tool", "content": "x"}])
    escape = template_in(tmp_path, chat_template="{{ ''.__class__.__mro__ }}")
    with pytest.raises(ConfigError, match="unsafe"):
        escape([])
    failing = template_in(tmp_path, chat_template="{{ 'abc'.index('z') }}")
    with pytest.raises(ConfigError, match="substring not found; leave this out"):
        failing([])
    large = template_in(tmp_path, chat_template="{{ 'a' * 9000000000 }}")
    with pytest.raises(ConfigError, match=r"'m': takes over 1 GiB of memory .*; leave this out"):
        large([])


@pytest.mark.parametrize(
    "dataset",
    [
        {"input_tokens": {"mean": 60, "stddev": 15, "min": 40}},
        {"input_tokens": {"mean": 80}, "prefix": {"system_tokens": 20, "groups": 2, "tokens": 10}},
    ],
    ids=["plain", "prefixes"],
)
def test_synthetic_prompts_have_their_lengths_inside_the_template(
    config: Config, templated: LibraryTokenCounter, dataset: dict[str, Any]
) -> None:
    tokenizer = {"name": "tiny", "apply_chat_template": True}
    with_it = config(dataset=dataset | {"entries": 30}, tokenizer=tokenizer)
    without = config(dataset=dataset | {"entries": 30}, tokenizer={"name": "tiny"})
    assert templated.template is not None
    built = assemble(with_it, synthetic_prompts(with_it, templated), Source("x"), templated)
    lengths = [entry.turns[0].input_tokens for entry in synthetic_prompts(without, templated)]
    assert [entry.turns[0].input_tokens for entry in built.conversations] == lengths
    for entry, wanted in zip(built.conversations, lengths, strict=True):
        messages = json.loads(entry.turns[0].messages)["messages"]
        assert templated.count(templated.template(messages)) == wanted


def test_length_that_the_template_alone_exceeds_is_refused(
    config: Config, templated: LibraryTokenCounter
) -> None:
    tokenizer = {"name": "tiny", "apply_chat_template": True}
    benchmark = config(dataset={"input_tokens": {"mean": 3}, "entries": 1}, tokenizer=tokenizer)
    with pytest.raises(DatasetError, match=r"a prompt of 3 tokens, of which the chat template"):
        synthetic_prompts(benchmark, templated)


def test_later_turn_counts_only_its_added_tokens(templated: LibraryTokenCounter) -> None:
    assert templated.template is not None
    turns = tuple(PromptTurn(Prompt(texts=(text,))) for text in ("one two", "three"))
    first, later = templated_tokens([PromptConversation("a", turns)], templated)
    start = [{"role": "user", "content": "one two"}]
    assert first == templated.count(templated.template(start))
    both = [*start, {"role": "assistant", "content": "b"}, {"role": "user", "content": "three"}]
    before = templated.template(both[:2], add_generation_prompt=False)
    assert later == templated.count(templated.template(both)) - templated.count(before)


def test_reasoning_that_history_lacks_is_not_subtracted(
    counter: LibraryTokenCounter, tmp_path: Path
) -> None:
    """Like Qwen's template, which includes only the last response's reasoning, even an empty
    one."""
    text = """{%- for message in messages %}
    {{- "\n### " + message.role + ":\n" }}
    {%- if loop.last and message.role == "assistant" %}{{ "<think>\n\n</think>\n" }}{% endif %}
    {{- message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "\n### assistant:\n" }}{% endif %}"""
    template = template_in(tmp_path, chat_template=text)
    templated = LibraryTokenCounter("tiny", counter._tokenizer, template)
    turns = tuple(PromptTurn(Prompt(texts=(text,))) for text in ("one two", "three"))
    _, later = templated_tokens([PromptConversation("a", turns)], templated)
    added = "\n### user:\nthree\n### assistant:\n"
    assert later == counter.count(f"b{added}") - counter.count("b")


REQUEST_TEMPLATE = (
    "{% if enable_thinking is false %}no thoughts {% endif %}{{ messages[0].content }}"
    "{% for tool in tools or () %} {{ tool.function.name }}{% endfor %}"
)
VARIABLES: dict[str, Any] = {
    "chat_template_kwargs": {"enable_thinking": False},
    "tools": [{"type": "function", "function": {"name": "weather"}}],
}


def test_template_gets_the_contents_of_each_request(
    counter: LibraryTokenCounter, tmp_path: Path
) -> None:
    template = template_in(tmp_path, chat_template=REQUEST_TEMPLATE)
    templated = LibraryTokenCounter("tiny", counter._tokenizer, template)
    entries = [PromptConversation("a", (PromptTurn(Prompt(texts=("one",))),))]
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "one"),
        (VARIABLES, "no thoughts one weather"),
        (VARIABLES | {"chat_template_kwargs": None}, "one weather"),
        ({"tools": [{"name": "of another API", "input_schema": {}}]}, "one"),
    ]
    for extra, expected in cases:
        assert templated_tokens(entries, templated, extra) == [counter.count(expected)]


def test_synthetic_lengths_include_request_overhead(
    config: Config, counter: LibraryTokenCounter, tmp_path: Path
) -> None:
    template = template_in(tmp_path, chat_template=REQUEST_TEMPLATE)
    templated = LibraryTokenCounter("tiny", counter._tokenizer, template)
    benchmark = config(
        dataset={"input_tokens": {"mean": 40}, "entries": 3},
        tokenizer={"name": "tiny", "apply_chat_template": True},
        endpoint={"extra_inputs": VARIABLES},
    )
    built = assemble(benchmark, synthetic_prompts(benchmark, templated), Source("x"), templated)
    for entry in built.conversations:
        text = json.loads(entry.turns[0].messages)["messages"][0]["content"]
        assert entry.turns[0].input_tokens == counter.count(f"no thoughts {text} weather") == 40


def test_template_gets_calls_as_servers_decode_them(
    counter: LibraryTokenCounter, tmp_path: Path
) -> None:
    text = (
        "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or () "
        "%}{{ call.function.arguments.city }}{% if call.function.arguments is mapping %} object"
        "{% endif %}{% endfor %}{% endfor %}"
    )
    template = template_in(tmp_path, chat_template=text)
    templated = LibraryTokenCounter("tiny", counter._tokenizer, template)
    call = {"id": "c", "function": {"name": "f", "arguments": '{"city": "Bern"}'}}
    cut = {"id": "d", "function": {"name": "f", "arguments": "{"}}
    none = {"id": "e", "function": {"name": "f", "arguments": ""}}
    message = {"role": "assistant", "content": None, "tool_calls": [call, cut, none]}
    entries = [PromptConversation("a", (PromptTurn(Prompt(messages=(message,))),))]
    assert templated_tokens(entries, templated) == [counter.count("Bern object object")]


def test_complete_later_prompt_is_counted_alone(templated: LibraryTokenCounter) -> None:
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": "one two"})
    turns = tuple(PromptTurn(Prompt(messages=messages), is_whole=True) for _ in range(2))
    assert templated.template is not None
    expected = templated.count(templated.template(messages))
    assert templated_tokens([PromptConversation("a", turns)], templated) == [expected] * 2


def test_parts_payloads_and_system_prompts_are_counted(templated: LibraryTokenCounter) -> None:
    parts = {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "u"}]}
    plain = {"role": "user", "content": "u"}
    system = {"role": "system", "content": "s"}
    prompts = (
        Prompt(texts=("u",), system="s"),
        Prompt(messages=(system, parts)),
        Prompt(payload={"messages": [plain], "system": "s"}),
        Prompt(payload={"input": "u", "instructions": "s"}),
    )
    entries = [PromptConversation("a", (PromptTurn(prompt),)) for prompt in prompts]
    assert templated.template is not None
    assert templated_tokens(entries, templated) == [
        templated.count(templated.template([system, plain]))
    ] * len(prompts)


def test_a_template_needs_messages_and_a_tokenizer(config: Config) -> None:
    for changes, words in (
        ({"tokenizer": {"apply_chat_template": True}}, "needs {name}"),
        (
            {
                "tokenizer": {"apply_chat_template": True, "name": "x"},
                "endpoint": {"type": "completions"},
            },
            "chat, responses or messages, not completions",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            config(**changes)
