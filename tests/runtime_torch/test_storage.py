"""s3:// and file:// locations behave alike, and their errors name the location and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from moerl_runtime.checkpoint import marker, storage
from moerl_runtime.checkpoint.marker import Marker

pytestmark = pytest.mark.torch


@pytest.fixture(params=["file", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder of either kind."""
    if request.param == "file":
        return (tmp_path / "with space" / "root").as_uri()
    bucket: str = request.getfixturevalue("s3")
    return f"{bucket}/{tmp_path.name}"


def test_objects_are_written_read_listed_and_deleted(root: str) -> None:
    assert storage.read(storage.join(root, "a")) is None
    assert storage.list_folder(root) == []
    storage.write(storage.join(root, "a"), b"1")
    storage.write(storage.join(root, "sub/b"), b"2")
    storage.write(storage.join(root, "a"), b"3")
    assert storage.read(storage.join(root, "a")) == b"3"
    assert storage.list_folder(root) == ["a", "sub/b"]
    storage.delete(storage.join(root, "a"))
    storage.delete(storage.join(root, "a"))
    storage.delete_folder(root)
    assert storage.list_folder(root) == []


def test_folders_go_up_and_come_down(root: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "x.bin").write_bytes(bytes(range(256)) * 1000)
    storage.upload_folder(source, root)
    folder = storage.download_folder(root, tmp_path / "down")
    assert (folder / "x.bin").read_bytes() == (source / "x.bin").read_bytes()
    with pytest.raises(storage.StorageError, match="holds no files"):
        storage.download_folder(storage.join(root, "nothing"), tmp_path / "none")


def test_a_failed_write_leaves_the_old_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = (tmp_path / "object").as_uri()
    storage.write(uri, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(storage.StorageError, match=r"object cannot be written: No space left"):
        storage.write(uri, b"new")
    assert storage.read(uri) == b"old"
    assert storage.list_folder(tmp_path.as_uri()) == ["object"]


def test_mistakes_are_named(s3: str) -> None:
    with pytest.raises(storage.StorageError, match="begins with s3:// or file://"):
        storage.read("http://somewhere/x")
    with pytest.raises(storage.StorageError, match="three slashes"):
        storage.read("file://relative/x")
    with pytest.raises(storage.StorageError, match=r"s3://absent/x cannot be written: .*create the bucket"):
        storage.write("s3://absent/x", b"")


def test_the_highest_attempt_and_step_with_a_marker_is_the_latest(root: str) -> None:
    assert marker.latest(root) is None
    for attempt, step in ((1, 50), (1, 100), (2, 60), (10, 70)):
        storage.write(storage.join(root, str(attempt), str(step), "data"), b"x")
        if (attempt, step) != (10, 70):
            marker.write(root, Marker(attempt=attempt, step=step, version=step, job="", dataset={"cursor": step}))
    latest = marker.latest(root)
    assert latest is not None
    assert (latest.attempt, latest.step, latest.dataset) == (2, 60, {"cursor": 60})
    assert marker.prune(root, keep=1) == 2
    assert marker.complete(root) == [(2, 60)]
    assert "10/70/data" in storage.list_folder(root), "an incomplete folder may still be in the making"
    storage.write(storage.join(root, "2", "60", "COMPLETE"), b"{}")
    with pytest.raises(storage.StorageError, match="not a checkpoint marker"):
        marker.latest(root)
