"""The objects of a release from manifests and from the config itself."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from aiperf_svc.adapters.pulumi.rendering import plugin_path, render_release
from aiperf_svc.config.target import Target
from aiperf_svc.config.yaml_files import read_yaml
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.release import name_of
from tests.support.releases import graph, release_target


def _render(source: object, base: Path) -> list[Json]:
    target = Target.model_validate(release_target() | {"from": source})
    found = render_release(target, base=base, environ={"PATH": "", "PULUMI_HOME": str(base)})
    return [each for one in found for each in one.objects]


def test_folder_is_read_in_file_order(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("{apiVersion: v1, kind: Service, metadata: {name: s}}")
    (tmp_path / "a.yaml").write_text(
        "---\n{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: p}}"
        "]}\n---\n"
    )
    (tmp_path / "README.md").write_text("no manifest")
    names = [name_of(each) for each in _render({"manifests": "."}, tmp_path)]
    assert names == ["Pod/p", "Service/s"]


@pytest.mark.parametrize("source", ["manifests", "object"])
def test_dates_stay_strings(source: str, tmp_path: Path) -> None:
    text = """
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: c, annotations: {day: 2026-01-02, at: 2026-01-02T03:04:05Z, op: =}}
    """
    path = tmp_path / "m.yaml"
    path.write_text(text)
    value = "m.yaml" if source == "manifests" else read_yaml(path)
    (found,) = _render({source: value}, tmp_path)
    assert found["metadata"]["annotations"] == {
        "day": "2026-01-02", "at": "2026-01-02T03:04:05Z", "op": "=",
    }  # fmt: skip


def test_several_sources_are_joined(tmp_path: Path) -> None:
    found = _render([{"object": graph()}, {"object": graph("other")}], tmp_path)
    assert found == [graph(), graph("other")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod", "document 1 of m.yaml is not an object of Kubernetes"),
        ("a: [", "m.yaml: while parsing"),
        ("a: !!int foo", "not a value: invalid literal for int()"),
        (None, "cannot read"),
    ],
)
def test_bad_manifests_are_reported_in_one_line(
    text: str | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        _render({"manifests": "m.yaml"}, tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_chart_needs_the_provider(tmp_path: Path) -> None:
    (tmp_path / "chart").mkdir()
    with pytest.raises(ConfigError, match="pulumi plugin install resource kubernetes"):
        _render({"chart": "chart"}, tmp_path)


def test_a_missing_chart_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no /.*/nothing"):
        _render({"chart": "nothing"}, tmp_path)


def test_the_newest_installed_provider_is_used(tmp_path: Path) -> None:
    for version in ("4.9.0", "4.18.1"):
        folder = tmp_path / f"plugins/resource-kubernetes-v{version}"
        folder.mkdir(parents=True)
        (folder / "pulumi-resource-kubernetes").touch()
    found = plugin_path({"PATH": "", "PULUMI_HOME": str(tmp_path)})
    assert "v4.18.1" in found


def test_provider_is_in_home_of_passwd_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / ".pulumi/plugins/resource-kubernetes-v4.18.1/pulumi-resource-kubernetes"
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path)))
    assert plugin_path({"PATH": "", "HOME": "/somewhere/else"}) == str(plugin)
