"""Bytes at s3:// and file:// locations: the one module that knows how the two differ.

Blocking on purpose (boto3 has no asyncio); callers on an event loop use a thread. Credentials, region and endpoint
come from the usual AWS_* environment, AWS_ENDPOINT_URL included.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

_UNFINISHED = ".part"
_ABSENT = {"404", "NoSuchKey", "NotFound"}


class StorageError(RuntimeError):
    """A location cannot be read or written; the message names it, the cause and, where known, the remedy."""


def join(uri: str, *parts: str) -> str:
    """The location `parts` below the folder `uri`."""
    return "/".join([uri.rstrip("/"), *(part.strip("/") for part in parts)])


def is_s3(uri: str) -> bool:
    """True for s3://, False for file://. StorageError for anything else."""
    scheme = urlparse(uri).scheme
    if scheme not in ("s3", "file"):
        raise StorageError(f"{uri}: a location begins with s3:// or file://")
    return scheme == "s3"


def local_path(uri: str) -> Path:
    """The path of a file:// location."""
    parsed = urlparse(uri)
    if parsed.netloc not in ("", "localhost"):
        raise StorageError(f"{uri}: write file:///absolute/path, with three slashes")
    return Path(unquote(parsed.path))


def read(uri: str) -> bytes | None:
    """The object's bytes, None if there is none."""
    if not is_s3(uri):
        try:
            return local_path(uri).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"{uri} cannot be read: {error.strerror}") from error
    bucket, key = split_s3(uri)
    try:
        body: bytes = client().get_object(Bucket=bucket, Key=key)["Body"].read()
        return body
    except (ClientError, BotoCoreError) as error:
        if _absent(error):
            return None
        raise _s3_error(uri, "read", error) from error


def write(uri: str, data: bytes) -> None:
    """Write the object as a whole: a reader sees the old bytes or the new ones, and a returned call has lasted."""
    if not is_s3(uri):
        try:
            _write_file(local_path(uri), data)
        except OSError as error:
            raise StorageError(f"{uri} cannot be written: {error.strerror}") from error
        return
    bucket, key = split_s3(uri)
    try:
        client().put_object(Bucket=bucket, Key=key, Body=data)
    except (ClientError, BotoCoreError) as error:
        raise _s3_error(uri, "written", error) from error


def list_folder(uri: str) -> list[str]:
    """Names relative to `uri` of all objects below it, sorted; empty if there is no such folder."""
    if not is_s3(uri):
        root = local_path(uri)
        return [str(path.relative_to(root)) for path in _files(root)]
    bucket, key = split_s3(join(uri, ""))
    try:
        pages = client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
        return sorted(item["Key"].removeprefix(key) for page in pages for item in page.get("Contents", []))
    except (ClientError, BotoCoreError) as error:
        raise _s3_error(uri, "listed", error) from error


def upload_folder(folder: Path, uri: str) -> None:
    """Copy a local folder to `uri`, file by file."""
    for path in _files(folder):
        name = str(path.relative_to(folder))
        if is_s3(uri):
            bucket, key = split_s3(join(uri, name))
            try:
                client().upload_file(str(path), bucket, key)
            except (ClientError, BotoCoreError, OSError, boto3.exceptions.Boto3Error) as error:
                raise _s3_error(join(uri, name), "written", error) from error
        else:
            write(join(uri, name), path.read_bytes())


def download_folder(uri: str, into: Path) -> Path:
    """A local folder with the contents of `uri`: `into`, or for file:// the folder itself. StorageError if empty."""
    names = list_folder(uri)
    if not names:
        raise StorageError(f"{uri} holds no files: check the location, it must be an existing folder")
    if not is_s3(uri):
        return local_path(uri)
    for name in names:
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        bucket, key = split_s3(join(uri, name))
        try:
            client().download_file(bucket, key, str(target))
        except (ClientError, BotoCoreError) as error:
            raise _s3_error(join(uri, name), "read", error) from error
    return into


def delete(uri: str) -> None:
    """Remove one object; nothing there is no error."""
    if not is_s3(uri):
        local_path(uri).unlink(missing_ok=True)
        return
    bucket, key = split_s3(uri)
    try:
        client().delete_object(Bucket=bucket, Key=key)
    except (ClientError, BotoCoreError) as error:
        raise _s3_error(uri, "deleted", error) from error


def delete_folder(uri: str) -> None:
    """Remove everything below `uri`; nothing there is no error."""
    if not is_s3(uri):
        shutil.rmtree(local_path(uri), ignore_errors=True)
        return
    bucket, key = split_s3(join(uri, ""))
    names = list_folder(uri)
    try:
        for at in range(0, len(names), 1000):  # the API takes at most 1000 keys
            batch = [{"Key": key + name} for name in names[at : at + 1000]]
            client().delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": True})
    except (ClientError, BotoCoreError) as error:
        raise _s3_error(uri, "deleted", error) from error


def split_s3(uri: str) -> tuple[str, str]:
    """(bucket, key) of an s3:// location."""
    parsed = urlparse(uri)
    return parsed.netloc, unquote(parsed.path.lstrip("/"))


@cache
def client() -> Any:
    """The S3 client of this process."""
    # Emulators and S3-compatible stores answer at one host name, hence path style with a custom endpoint.
    config = Config(
        retries={"mode": "standard", "max_attempts": 6},
        connect_timeout=10,
        read_timeout=60,
        s3={"addressing_style": "path" if endpoint() else "auto"},
        # Not every S3-compatible store knows the checksums that newer SDKs add of themselves.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.client("s3", region_name=region(), config=config)


def region() -> str:
    """AWS_REGION, else AWS_DEFAULT_REGION, else us-east-1."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def endpoint() -> str | None:
    """The custom S3 endpoint of the environment, if any."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _absent(error: Exception) -> bool:
    return isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in _ABSENT


def _s3_error(uri: str, what: str, error: Exception) -> StorageError:
    code = error.response.get("Error", {}).get("Code", "") if isinstance(error, ClientError) else type(error).__name__
    remedy = {
        "NoSuchBucket": "create the bucket or correct the name",
        "AccessDenied": "give the pod's role s3:GetObject, s3:PutObject, s3:ListBucket and s3:DeleteObject on it",
        "InvalidAccessKeyId": "check the credentials",
        "NoCredentialsError": "give the pod AWS credentials (Pod Identity, IRSA or AWS_ACCESS_KEY_ID)",
        "EndpointConnectionError": "check AWS_ENDPOINT_URL and the network policy",
    }.get(code)
    return StorageError(f"{uri} cannot be {what}: {error}" + (f"; {remedy}" if remedy else ""))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != _UNFINISHED)


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
