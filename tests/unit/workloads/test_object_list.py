"""The reviewer's list of objects contains every field of the objects exactly once."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.config.yaml_files import yaml_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.workloads.previews.object_list import HIDDEN, NAME, lines, without_secrets

GOLDEN = Path(__file__).parents[2] / "infra" / "golden"
STACKS = ("100k", "command", "dynamo", "monitored", "rdma", "variants")
NOTE = re.compile(r"^(?P<text>.*?)  # (?P<all_but>all but )?(?P<names>[\w., -]+)$")


def committed(stack: str) -> list[Json]:
    text = (GOLDEN / f"{stack}.yaml").read_bytes()
    return without_secrets(yaml.load_all(text, Loader=yaml.CSafeLoader))


def deployment(name: str, **spec: Any) -> Json:
    metadata = {"name": f"{name}-s", "labels": {"stack": "s", "part": name}}
    spec |= {"image": "i:1", "securityContext": {"runAsNonRoot": True}, "strategy": "Recreate"}
    return {"kind": "Deployment", "metadata": metadata, "spec": spec}


def listed(*objects: Json) -> list[str]:
    return lines(without_secrets(objects), stack="s")


def test_common_values_are_listed_once() -> None:
    assert listed(
        deployment("control", replicas=1),
        deployment("deadline", replicas=1, args=["deadline"]),
        deployment("worker", replicas=200),
    ) == [
        "# every object (3)",
        "metadata: {labels: {stack: s}}",
        "",
        "# Deployment (3): control, deadline, worker",
        "metadata: {labels: {part: NAME}, name: NAME-s}",
        "spec:",
        "  image: i:1",
        "  replicas: 1  # all but worker",
        "  replicas: 200  # worker",
        "  securityContext: {runAsNonRoot: true}",
        "  strategy: Recreate",
        "  args: [NAME]  # deadline",
    ]


def test_values_that_all_differ_are_counted() -> None:
    text = listed(*(deployment(f"shape-{n}", replicas=n) for n in range(100, 120)))
    names = ", ".join(f"shape-{n}" for n in range(100, 112))
    assert f"# Deployment (20): {names} and 8 more" in text
    assert "  replicas: 111  # shape-111" in text
    assert "  replicas: …  # 8 more values" in text
    assert text.count("  image: i:1") == 1


def test_long_texts_end_early_and_commands_do_not() -> None:
    script = "\n".join(f"step {n}" for n in range(100))
    text = "\n".join(listed(deployment("a", command=["sh", "-c", script], note=script)))
    assert "note: step 0 … (100 lines)" in text
    assert all(f"      step {n}\n" in f"{text}\n" for n in range(100))


def test_equal_names_and_equal_items_are_all_listed() -> None:
    twins = [deployment("a", ports=[{"port": 1}, {"port": 1}], replicas=n) for n in (1, 2)]
    for each, namespace in zip(twins, ("x", "y"), strict=True):
        each["metadata"]["namespace"] = namespace
    text = listed(*twins)
    assert "# Deployment (2): a, y/a (None)" in text
    assert {"  replicas: 1  # a", "  replicas: 2  # all but a"} <= {*text}
    assert "  ports: [{port: 1}, {port: 1}]" in text


def test_secrets_have_keys_and_no_values() -> None:
    secret = {
        "kind": "Secret",
        "metadata": {"name": "key-s"},
        "data": {"token": "c2VjcmV0"},
        "stringData": {"other": "secret"},
    }
    (hidden,) = without_secrets([secret])
    assert (hidden["data"], hidden["stringData"]) == ({"token": HIDDEN}, {"other": "(hidden)"})
    assert "data: {token: (hidden)}" in listed(secret)


@pytest.mark.parametrize("name", STACKS)
def test_each_object_can_be_read_from_the_list(name: str) -> None:
    stack = f"bench-{name}"
    objects = committed(stack)
    shared, *kinds = "\n".join(lines(objects, stack=stack, is_whole=True)).split("\n\n# ")
    common = yaml.load(shared, yaml.CSafeLoader)["metadata"]
    texts = {kind.partition(":")[0].partition(" ")[0]: kind for kind in kinds}
    for each in objects:
        found = read(texts[each["kind"]], each, stack)
        for part, values in common.items():
            found["metadata"][part] = {**values, **found["metadata"].get(part, {})}
        assert ordered(found) == ordered(each)


def test_list_is_a_quarter_of_the_manifests() -> None:
    stack, objects = "bench-100k", committed("bench-100k")
    whole = sum(yaml.dump(each, Dumper=yaml.CSafeDumper).count("\n") for each in objects)
    assert len(lines(objects, stack=stack)) < whole / 4


def read(kind: str, wanted: Json, stack: str) -> Json:
    """Rebuild one object from the lines of its kind that apply to it."""
    title, *rest = kind.splitlines()
    name = wanted["metadata"]["name"].removesuffix(f"-{stack}")
    kept, hidden_at = [], 1000
    for line in rest:
        indent = len(line) - len(line.lstrip(" "))
        if indent > hidden_at:
            continue
        hidden_at, note = 1000, NOTE.match(line)
        if note is not None:
            is_named = name in note["names"].split(", ")
            if is_named == bool(note["all_but"]):
                hidden_at = indent
                continue
            line = note["text"]
        kept.append(line)
    text = "\n".join(kept)
    if title.partition(":")[0].endswith(")"):
        text = re.sub(rf"\b{NAME}\b", name, text)
    return {"kind": wanted["kind"], **yaml.load(text, yaml.CSafeLoader)}


def ordered(value: Any) -> Any:
    """Return a value with the objects in its lists in a fixed order and without trailing blanks."""
    if isinstance(value, dict):
        return {key: ordered(each) for key, each in value.items()}
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return sorted(map(ordered, value), key=yaml_line)
    if isinstance(value, list):
        return [ordered(each) for each in value]
    return value.strip() if isinstance(value, str) else value
