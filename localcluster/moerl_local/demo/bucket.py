"""Moves folders between this machine and the emulator's S3."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from moerl_local.demo.errors import DemoError


class Bucket:
    """S3 at `endpoint`, with path-style addresses as the emulator wants them."""

    def __init__(self, endpoint: str) -> None:
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106 (the emulator takes any)
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 3}),
        )

    def upload(self, folder: Path, uri: str) -> int:
        """Every file of `folder` below `uri`; how many bytes that were."""
        bucket, prefix = _split(uri)
        total = 0
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                total += path.stat().st_size
                self._client.upload_file(str(path), bucket, f"{prefix}/{path.relative_to(folder)}")
        return total

    def clear(self, uri: str) -> None:
        """Delete everything below `uri`."""
        bucket, prefix = _split(uri)
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
            for item in page.get("Contents", []):
                self._client.delete_object(Bucket=bucket, Key=item["Key"])

    def download(self, uri: str, folder: Path) -> int:
        """Everything below `uri` into `folder`; how many bytes that were.

        Raises:
            DemoError: nothing is there, or S3 does not answer.
        """
        bucket, prefix = _split(uri)
        total = 0
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
            for item in (item for page in pages for item in page.get("Contents", [])):
                path = folder / str(item["Key"])[len(prefix) + 1 :]
                path.parent.mkdir(parents=True, exist_ok=True)
                self._client.download_file(bucket, item["Key"], str(path))
                total += int(item["Size"])
        except (BotoCoreError, ClientError) as error:
            raise DemoError(f"download of {uri} failed: {error}") from error
        if not total:
            raise DemoError(f"{uri} is empty: the final policy should be there")
        return total


def _split(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    if parts.scheme != "s3" or not parts.netloc:
        raise DemoError(f"{uri} is no s3:// address")
    return parts.netloc, parts.path.strip("/")
