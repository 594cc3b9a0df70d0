"""Write an OCI image archive without any container tool.

    python3 mkimage.py OUT.tar NAME:TAG LAYER... [--entrypoint JSON] [--user UID:GID]

Each LAYER is a tar file, taken as it is, or a folder, packed with sorted names, owner root and time
zero, so that the same files give the same image. The archive is what `ctr images import` and
`buildah pull oci-archive:` read.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

EPOCH = "1970-01-01T00:00:00Z"
MEDIA_TYPE = "application/vnd.oci.image"
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def digest(blob: bytes) -> str:
    """The name of a blob in an OCI layout."""
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same member without what differs from machine to machine."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def layer(source: Path) -> bytes:
    """The uncompressed tar of one layer."""
    if source.is_file():
        return source.read_bytes()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in sorted(source.iterdir()):
            tar.add(entry, entry.name, filter=anonymous)
    return raw.getvalue()


def descriptor(kind: str, blob: bytes) -> dict[str, object]:
    """How one blob refers to another."""
    return {"mediaType": f"{MEDIA_TYPE}.{kind}", "digest": digest(blob), "size": len(blob)}


def archive(name: str, layers: list[bytes], process: dict[str, object]) -> dict[str, bytes]:
    """The files of the archive, by path. `process` is the config that containers start with."""
    packed = [gzip.compress(raw, compresslevel=1, mtime=0) for raw in layers]
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": EPOCH,
            "config": process,
            "rootfs": {"type": "layers", "diff_ids": [digest(raw) for raw in layers]},
            "history": [{"created": EPOCH} for _ in layers],
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA_TYPE}.manifest.v1+json",
            "config": descriptor("config.v1+json", config),
            "layers": [descriptor("layer.v1.tar+gzip", blob) for blob in packed],
        }
    ).encode()
    index = json.dumps(
        {
            "schemaVersion": 2,
            "manifests": [
                {
                    **descriptor("manifest.v1+json", manifest),
                    "platform": {"architecture": "amd64", "os": "linux"},
                    "annotations": {
                        "io.containerd.image.name": name,
                        "org.opencontainers.image.ref.name": name,
                    },
                }
            ],
        }
    ).encode()
    blobs = {f"blobs/{digest(b).replace(':', '/')}": b for b in (config, *packed, manifest)}
    return {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index, **blobs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("name", help="NAME:TAG")
    parser.add_argument("layers", type=Path, nargs="+", metavar="LAYER")
    parser.add_argument("--entrypoint", type=json.loads, help="a JSON list")
    parser.add_argument("--user", help="UID:GID")
    options = parser.parse_args()

    process: dict[str, object] = {"Env": [SEARCH_PATH]}
    if options.entrypoint:
        process["Entrypoint"] = options.entrypoint
    if options.user:
        process["User"] = options.user
    files = archive(options.name, [layer(path) for path in options.layers], process)
    with tarfile.open(options.out, "w") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()
