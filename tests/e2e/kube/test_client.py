"""The client against a real API server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moerl_operator.kube import client as client_module
from moerl_operator.kube.api import Kinds, KubeApi, KubeError
from moerl_operator.kube.client import connect
from support.apiserver import ADMIN_TOKEN, ApiServer, write_kubeconfig

pytestmark = pytest.mark.e2e


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", **metadata}, "data": data or {}}


async def test_a_created_object_is_got_listed_and_deleted(kube: KubeApi) -> None:
    made = await kube.create(Kinds.CONFIG_MAP, config_map("made", {"a": "1"}, labels={"test": "made"}))
    assert made["metadata"]["uid"]

    got = await kube.get(Kinds.CONFIG_MAP, "default", "made")
    listed = await kube.list(Kinds.CONFIG_MAP, label_selector="test=made")
    assert got is not None
    assert [item["metadata"]["uid"] for item in listed] == [got["metadata"]["uid"]]
    assert (listed[0]["apiVersion"], listed[0]["kind"]) == ("v1", "ConfigMap")

    await kube.delete(Kinds.CONFIG_MAP, "default", "made", uid=made["metadata"]["uid"])
    assert await kube.get(Kinds.CONFIG_MAP, "default", "made") is None
    await kube.delete(Kinds.CONFIG_MAP, "default", "made")  # absence is success


async def test_delete_by_uid_spares_a_namesake(kube: KubeApi) -> None:
    await kube.create(Kinds.CONFIG_MAP, config_map("namesake"))

    await kube.delete(Kinds.CONFIG_MAP, "default", "namesake", uid="00000000-0000-0000-0000-000000000000")

    assert await kube.get(Kinds.CONFIG_MAP, "default", "namesake") is not None


async def test_an_unknown_field_is_refused_by_create_apply_and_patch(kube: KubeApi) -> None:
    typo = {**config_map("typo"), "dta": {}}
    with pytest.raises(KubeError, match="dta") as created:
        await kube.create(Kinds.CONFIG_MAP, typo)
    with pytest.raises(KubeError, match="dta") as applied:
        await kube.apply(Kinds.CONFIG_MAP, typo)
    assert created.value.invalid
    assert applied.value.status in (400, 422, 500)

    await kube.create(Kinds.CONFIG_MAP, config_map("typo"))
    with pytest.raises(KubeError, match="dta"):
        await kube.patch(Kinds.CONFIG_MAP, "default", "typo", {"dta": {"x": "y"}})


async def test_apply_takes_over_and_an_equal_apply_writes_nothing(kube: KubeApi) -> None:
    await kube.create(Kinds.CONFIG_MAP, config_map("applied", {"a": "theirs"}))

    first = await kube.apply(Kinds.CONFIG_MAP, config_map("applied", {"a": "ours"}))
    second = await kube.apply(Kinds.CONFIG_MAP, config_map("applied", {"a": "ours"}))

    assert first["data"] == {"a": "ours"}
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_dry_runs_leave_nothing(kube: KubeApi) -> None:
    await kube.create(Kinds.CONFIG_MAP, config_map("dry"), dry_run=True)
    await kube.apply(Kinds.CONFIG_MAP, config_map("dry"), dry_run=True)

    assert await kube.get(Kinds.CONFIG_MAP, "default", "dry") is None


async def test_a_json_patch_with_a_failed_test_changes_nothing(kube: KubeApi) -> None:
    made = await kube.create(Kinds.CONFIG_MAP, config_map("tested", {"a": "1"}))
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
        {"op": "replace", "path": "/data/a", "value": "2"},
    ]
    with pytest.raises(KubeError) as refused:
        await kube.patch(Kinds.CONFIG_MAP, "default", "tested", patch)
    assert refused.value.invalid

    patch[0]["value"] = made["metadata"]["resourceVersion"]
    assert (await kube.patch(Kinds.CONFIG_MAP, "default", "tested", patch))["data"] == {"a": "2"}


async def test_create_of_an_existing_object_is_a_conflict(kube: KubeApi) -> None:
    await kube.create(Kinds.CONFIG_MAP, config_map("twice"))
    with pytest.raises(KubeError) as error:
        await kube.create(Kinds.CONFIG_MAP, config_map("twice"))
    assert error.value.conflict
    assert error.value.reason == "AlreadyExists"


async def test_lists_come_in_pages(kube: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LIST_PAGE", 3)
    for number in range(8):
        await kube.apply(Kinds.CONFIG_MAP, config_map(f"page-{number}", labels={"test": "page"}))

    listed = await kube.list(Kinds.CONFIG_MAP, "default", label_selector="test=page")

    assert sorted(item["metadata"]["name"] for item in listed) == [f"page-{number}" for number in range(8)]


async def test_secrets_can_be_listed_without_their_values(kube: KubeApi) -> None:
    secret = {"metadata": {"name": "hush", "namespace": "default"}, "stringData": {"password": "x"}}
    await kube.create(Kinds.SECRET, secret)

    (listed,) = await kube.list(Kinds.SECRET, "default", field_selector="metadata.name=hush", metadata_only=True)

    assert listed["metadata"]["name"] == "hush"
    assert "data" not in listed
    assert listed["kind"] == "Secret"


async def test_a_watch_gives_changes_and_ends_by_itself(kube: KubeApi) -> None:
    seen: list[tuple[str, str]] = []

    async def watch() -> None:
        async for kind, obj in kube.watch(
            Kinds.CONFIG_MAP, "default", label_selector="test=watched", timeout_seconds=4
        ):
            seen.append((kind, obj["metadata"].get("name", "")))

    task = asyncio.create_task(watch())
    await asyncio.sleep(1)
    await kube.create(Kinds.CONFIG_MAP, config_map("watched", labels={"test": "watched"}))
    await kube.delete(Kinds.CONFIG_MAP, "default", "watched")
    await task

    assert [item for item in seen if item[0] != "BOOKMARK"] == [("ADDED", "watched"), ("DELETED", "watched")]


async def test_a_token_replaced_on_disk_is_read_again(server: ApiServer, tmp_path: Path) -> None:
    ca = server.folder / "certs" / "apiserver.crt"
    path = write_kubeconfig(tmp_path / "kubeconfig", server.url, ca, "expired")
    async with connect(path) as kube:
        with pytest.raises(KubeError) as refused:
            await kube.get(Kinds.NAMESPACE, None, "default")
        assert refused.value.status == 401

        write_kubeconfig(path, server.url, ca, ADMIN_TOKEN)
        assert await kube.get(Kinds.NAMESPACE, None, "default") is not None


async def test_no_server_is_one_retriable_error(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", Path("/nonexistent"), "x")
    path.write_text(path.read_text().replace("certificate-authority: /nonexistent", "insecure-skip-tls-verify: true"))
    async with connect(path) as kube:
        with pytest.raises(KubeError) as error:
            await kube.list(Kinds.NAMESPACE)
    assert error.value.retriable
    assert "/api/v1/namespaces" in str(error.value)


async def test_a_missing_kubeconfig_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match="no kubeconfig file at"):
        async with connect(tmp_path / "none"):
            pass
