"""Templates that use too many resources are stopped, and others are not."""

import resource
import threading
from collections.abc import Iterator

import jinja2
import pytest

from aiperf_svc.config import templates
from aiperf_svc.config.templates import TooCostly, sandbox, within_limits

LONG = "range(99999)"
ENDLESS = {
    "nested loops": f"{{% for a in {LONG} %}}{{% for b in {LONG} %}}{{% endfor %}}{{% endfor %}}",
    "a loop with a condition": (
        f"{{% for a in {LONG} %}}{{% for b in {LONG} if b < 0 %}}{{% endfor %}}{{% endfor %}}"
    ),
    "a recursive loop": "{% for a in [1, 2] recursive %}{{ loop([a, a]) }}{% endfor %}",
    "macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}"
    ),
}
LARGE = (
    "{{ 'a' * 9000000000 }}",
    "{{ ('a' * n) | length }}",
    "{{ 'a' | center(9000000000) }}",
    "{{ 'a'.ljust(n) }}",
    "{{ '%9000000000d' % 1 }}",
    "{{ '{:9000000000}'.format(1) }}",
    "{{ [1] * n }}",
    "{% set s = namespace(a='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set s.a = s.a ~ s.a %}{% endfor %}",
    "{% set s = namespace(a=[1]) %}"
    "{% for i in range(60) %}{% set s.a = [s.a, s.a] %}{% endfor %}{{ s.a }}",
    "{{ ('a' * 100000) | replace('a', 'a' * 1000000) }}",
)
MANY_BITS = ("{{ 10 ** 1000000000 }}", "{{ n ** n }}", "{{ 2 ** -n }}")


@pytest.fixture(autouse=True)
def limit_is_restored() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    yield
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def rendered(text: str, **values: object) -> str:
    environment = sandbox(undefined=jinja2.StrictUndefined)
    template = within_limits(lambda: environment.from_string(text))
    return within_limits(lambda: template.render(n=9_000_000_000, **values))


@pytest.mark.parametrize("text", ENDLESS.values(), ids=list(ENDLESS))
def test_endless_template_is_stopped(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MAX_S", 0.2)
    with pytest.raises(TooCostly) as raised:
        rendered(text)
    assert str(raised.value) in (
        "takes over 0.2 s of CPU time for one prompt; make its loops shorter",
        "is nested too deeply, or calls itself without an end",
    )


@pytest.mark.parametrize("text", LARGE)
def test_template_over_the_memory_limit_is_stopped(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "MAX_BYTES", 2**24)
    with pytest.raises(TooCostly) as raised:
        rendered(text)
    assert str(raised.value) == (
        "takes over 16 MiB of memory for one prompt; make its texts and lists shorter"
    )


@pytest.mark.parametrize("text", MANY_BITS)
def test_numbers_have_a_longest_length(text: str) -> None:
    with pytest.raises(TooCostly, match="with a result of over 4,096 bits"):
        rendered(text)


def test_parts_without_an_end_are_refused() -> None:
    with pytest.raises(TooCostly, match=r"slice\(9000000000\): expected at most 100,000 parts"):
        rendered("{{ [1] | slice(n) | map('length') | sum }}")


def test_deep_nesting_is_refused_when_it_is_compiled() -> None:
    with pytest.raises(TooCostly, match="nested too deeply"):
        rendered("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}")


def test_loops_equal_those_of_jinja() -> None:
    text = (
        "{% for m in messages if m.role != 'x' %}{{ loop.index }}/{{ loop.length }}:{{ m.role }}"
        "{% if not loop.last %}, {{ loop.nextitem.role }} next; {% endif %}{% else %}none"
        "{% endfor %}"
    )
    messages = [{"role": role} for role in ("system", "x", "user")]
    assert rendered(text, messages=messages) == "1/2:system, user next; 2/2:user"
    assert rendered(text, messages=[]) == "none"
    tree = "{% for n in t recursive %}{{ n[0] }}{{ loop(n[1]) }}{% endfor %}"
    assert rendered(tree, t=[("a", [("b", []), ("c", [])])]) == "abc"
    assert rendered("{{ 2 ** 10 * 3 }} {{ 'ab' * 2 }} {{ 2 ** -1 }}") == "3072 abab 0.5"


def test_template_errors_are_raised_unchanged() -> None:
    with pytest.raises(jinja2.UndefinedError, match="'nobody' is undefined"):
        rendered("{% for x in nobody %}{% endfor %}")
    with pytest.raises(jinja2.TemplateSyntaxError):
        rendered("{% for x in %}")


def test_threads_render_one_after_the_other() -> None:
    done: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: done.append(rendered("{% for a in range(999) %}x{% endfor %}"))
        )
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert done == ["x" * 999] * 4
