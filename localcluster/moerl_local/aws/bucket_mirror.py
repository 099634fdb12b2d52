"""A copy of the buckets on disk, because moto keeps them in memory and a checkpoint must outlive a restart.

Level-triggered: `sync` compares what the buckets list with what the folder's index says and copies the difference, so
that a missed moment costs nothing. What was written in the last second before a crash may be lost; parts of unfinished
uploads, old versions and bucket settings are.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

_KEPT = {"ContentType": "contentType", "ContentEncoding": "contentEncoding", "Metadata": "metadata"}


class BucketMirror:
    """The buckets behind one endpoint, and the folder that holds their copy. All methods block."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self._folder = folder
        self._index_path = folder / "index.json"
        self._index: dict[str, dict[str, dict[str, Any]]] = {}
        self._s3 = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="mirror",
            aws_secret_access_key="mirror",  # noqa: S106 (any key does)
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )

    def restore(self) -> None:
        """Fill the (empty) buckets from the folder. An entry whose file is missing is left out."""
        if not self._index_path.exists():
            return
        stored = json.loads(self._index_path.read_text())
        for bucket, objects in stored.items():
            self._s3.create_bucket(Bucket=bucket)
            for key, entry in objects.items():
                path = self._folder / entry["file"]
                if not path.exists():
                    continue
                extra = {name: entry[ours] for name, ours in _KEPT.items() if entry.get(ours)}
                self._s3.upload_file(str(path), bucket, key, ExtraArgs=extra)
        # Entity tags and times are new now: take them as they are, so that the next sync copies nothing.
        for bucket, listed in self._listing().items():
            known = stored.get(bucket, {})
            self._index[bucket] = {key: known[key] | {"state": state} for key, state in listed.items() if key in known}

    def sync(self) -> int:
        """Bring the folder up to date; how many objects were copied or removed."""
        listing, moves = self._listing(), 0
        self._folder.mkdir(parents=True, exist_ok=True)
        for bucket in [name for name in self._index if name not in listing]:
            moves += len(self._index[bucket])
            self._forget(bucket, list(self._index[bucket]))
            del self._index[bucket]
        for bucket, listed in listing.items():
            known = self._index.setdefault(bucket, {})
            changed = [key for key, state in listed.items() if known.get(key, {}).get("state") != state]
            gone = [key for key in known if key not in listed]
            for key in changed:
                self._copy(bucket, key, listed[key])
            self._forget(bucket, gone)
            moves += len(changed) + len(gone)
        temporary = self._index_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._index))
        os.replace(temporary, self._index_path)
        return moves

    def _listing(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for bucket in self._s3.list_buckets()["Buckets"]:
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket["Name"])
            found[bucket["Name"]] = {
                entry["Key"]: f"{entry['ETag']} {entry['LastModified'].timestamp():.0f} {entry['Size']}"
                for page in pages
                for entry in page.get("Contents", [])
            }
        return found

    def _copy(self, bucket: str, key: str, state: str) -> None:
        # A key may be longer than a file name and hold anything: the index has the key, the file its hash.
        name = hashlib.sha256(f"{bucket}/{key}".encode()).hexdigest()
        temporary = self._folder / f"{name}.tmp"
        try:
            answer = self._s3.get_object(Bucket=bucket, Key=key)
        except self._s3.exceptions.NoSuchKey:
            return  # deleted meanwhile: the next sync sees it
        with temporary.open("wb") as out:
            for chunk in answer["Body"].iter_chunks(1 << 20):
                out.write(chunk)
        os.replace(temporary, self._folder / name)
        kept = {ours: answer[theirs] for theirs, ours in _KEPT.items() if answer.get(theirs)}
        self._index[bucket][key] = {"file": name, "state": state} | kept

    def _forget(self, bucket: str, keys: list[str]) -> None:
        for key in keys:
            entry = self._index[bucket].pop(key)
            (self._folder / entry["file"]).unlink(missing_ok=True)
