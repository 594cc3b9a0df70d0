"""YAML output is the same with either emitter."""

from typing import Any

import pytest
import yaml

from aiperf_svc.config import yaml_files
from aiperf_svc.config.yaml_files import yaml_text

CONTENTS = [
    {"z": 1, "a": [1.5, 1e300, float("inf"), float("nan"), None, True], "b": {"c": {}, "d": []}},
    {"texts": ["", "on", "1e5", "~", "a: b", "- c", "#", "it's", '"', "two\nlines\n", " x", "<<"]},
    {"prompt": "Réponds en français, 漢字, \xa0 " + "words that go on " * 20},
    {"url": "http://host/" + "x" * 200, "key " * 40: 1, 5: "number", None: "nothing"},
    {"prompt": "Smile 😀 " * 30, "😀": "\\U0001F600"},
]


def pure(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("dumper", [yaml.SafeDumper, yaml_files._Dumper])
def test_text_is_the_same_with_libyaml_and_without(
    content: Any, dumper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml_files, "_Dumper", dumper)
    assert yaml_text(content) == pure(content)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
def test_plain_data_does_not_need_the_slow_emitter(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pure(CONTENTS[0])
    monkeypatch.delattr(yaml.emitter.Emitter, "emit")
    assert yaml_text(CONTENTS[0]) == expected
