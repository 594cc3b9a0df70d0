"""Checks that a stack's secrets appear only in its Secrets."""

import base64
import json
from collections.abc import Mapping, Set
from pathlib import Path

from tests.support.stack.real_cluster import Cluster


def secrets_of(cluster: Cluster, namespace: str, stack: str) -> set[str]:
    """Return all secret values of the stack."""
    found = cluster.objects("secrets", "-n", namespace, "-l", f"aiperf.dev/stack={stack}")
    return {base64.b64decode(v).decode() for secret in found for v in secret["data"].values()}


def objects_and_logs(cluster: Cluster, namespace: str) -> dict[str, bytes]:
    """Return everything except Secrets that a reader of the namespace sees."""
    types = [name for name in cluster.types(namespaced=True) if name != "secrets"]
    found = cluster.objects(",".join(types), "-n", namespace)
    shown = {f"{o['kind']} {o['metadata']['name']}": json.dumps(o).encode() for o in found}
    for pod in cluster.objects("pods", "-n", namespace):
        name = pod["metadata"]["name"]
        shown[f"log of {name}"] = cluster.kubectl("logs", name, "-n", namespace).encode()
    return shown


def files_in(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {f"file {path}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def found_in(shown: Mapping[str, bytes], secrets: Set[str]) -> list[str]:
    """Return where a secret appears, in plain or encoded form."""
    forms = {form for s in secrets for form in (s.encode(), base64.b64encode(s.encode()))}
    return [name for name, content in shown.items() if any(form in content for form in forms)]
