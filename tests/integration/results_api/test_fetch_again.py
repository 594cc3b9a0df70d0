"""`results` is called again after an interruption."""

from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.exports.manifest import ManifestEntry
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.runner.stack.attached import Attached, fetch
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_results import inference_result
from tests.support.fake_results_api import Api, make_status


async def test_interrupted_fetch_resumes_in_the_same_folder(
    api: Api, client: ResultsClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.provider.now = make_status(state="done", is_settled=True, results_ready=True)
    api.provider.content = inference_result(1)
    cluster = FakeCluster().typed
    outputs = {"runId": "run", "namespace": "n"}
    attached = Attached(stack="s", client=client, outputs=outputs, cluster=cluster)
    parent = tmp_path / "fetched"
    download = client.download

    async def break_off(entry: ManifestEntry, folder: Path) -> Path:
        if entry.name != "large.bin":
            raise EnvironmentProblem("broke off")
        return await download(entry, folder)

    with monkeypatch.context() as broken:
        broken.setattr(client, "download", break_off)
        with pytest.raises(EnvironmentProblem, match="broke off"):
            await fetch(attached, parent=parent)
    (folder,) = parent.iterdir()
    before = (folder / "large.bin").stat().st_ino

    async def fetched(**more: Any) -> Path | None:
        again = Attached(stack="s", client=client, outputs=outputs | more, cluster=cluster)
        return (await fetch(again, parent=parent)).artifacts

    assert await fetched(runId="another") != folder
    assert await fetched() == folder
    assert (folder / "large.bin").stat().st_ino == before
    assert (folder / "manifest.json").is_file()
    # Complete results stay unchanged, so another call uses another folder.
    assert await fetched() != folder
