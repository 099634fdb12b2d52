"""Carries the plan's Kubernetes actions out, one at a time, and shows their results to the cache at once."""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime
from typing import Any

from moerl_operator.api import names
from moerl_operator.control.cache import Cache, job_uid_of, trimmed
from moerl_operator.control.kinds import kind_of, kind_of_object
from moerl_operator.core.world import (
    ApplyChild,
    CreateChild,
    DeleteChild,
    DeleteJob,
    PatchChild,
    SetFinalizer,
)
from moerl_operator.kube.api import Kind, Kinds, KubeApi, KubeError, Obj

PASSWORD_KEY = "password"  # noqa: S105 - the key's name
_PASSWORD_BYTES = 32
_FREE_SECONDS = 2.0  # how long a name that a dry run found free counts as free

KubeAction = CreateChild | ApplyChild | PatchChild | DeleteChild | SetFinalizer | DeleteJob


class ForeignChild(Exception):
    """Another owner's object stands under the name of a child of ours."""

    def __init__(self, kind: Kind, name: str) -> None:
        super().__init__(f"{kind.kind} {name} exists and does not belong to this job")
        self.child = f"{kind.kind}/{name}"


class Children:
    """The writes of one operator to the API server, the status and events apart."""

    def __init__(self, kube: KubeApi, cache: Cache) -> None:
        self._kube = kube
        self._cache = cache
        self._free: dict[tuple[str, str, str], float] = {}  # (plural, namespace, name) -> when a dry run found it so

    async def carry_out(self, job: Obj, action: KubeAction) -> None:
        """One action for `job`. Raises KubeError, or ForeignChild."""
        match action:
            case CreateChild(obj, generate_password):
                await self._create(job, obj, generate_password)
            case ApplyChild(obj):
                await self._apply(job, obj)
            case PatchChild():
                await self._patch(job, action)
            case DeleteChild():
                await self._delete(job, action)
            case SetFinalizer(present):
                await self._set_finalizer(job, present)
            case DeleteJob():
                meta = job["metadata"]
                await self._kube.delete(Kinds.MOERL_JOB, meta["namespace"], meta["name"], uid=meta["uid"])

    async def dry_run(self, obj: Obj) -> str | None:
        """The server's objection to an object, None when it would take it. An existing one counts as taken."""
        kind = kind_of_object(obj)
        try:
            await self._kube.create(kind, _with_password(obj) if kind is Kinds.SECRET else obj, dry_run=True)
        except KubeError as error:
            # A RoleBinding is looked up against its Role, which a dry run has not made: 404 says nothing about it.
            if error.conflict or error.status == 404:
                return None
            if error.invalid or (error.status == 403 and not is_passing(error)):
                return f"{kind.kind} {obj['metadata']['name']}: {error.message}"
            raise
        self._free[_address(kind, obj)] = asyncio.get_running_loop().time()
        return None

    async def _create(self, job: Obj, obj: Obj, generate_password: bool) -> None:
        kind = kind_of_object(obj)
        try:
            made = await self._kube.create(kind, _with_password(obj) if generate_password else obj)
        except KubeError as error:
            if not error.conflict:
                raise
            await self._look_at(job, kind, obj)
            return
        self._cache.put(kind, made)

    async def _apply(self, job: Obj, obj: Obj) -> None:
        """Apply takes any object over by force, so a name not known to be ours is looked at first."""
        kind = kind_of_object(obj)
        meta = obj["metadata"]
        known = self._cache.get(kind, meta["namespace"], meta["name"])
        free = self._was_free(kind, obj)
        if (known is None and not free) or (known is not None and job_uid_of(known) != job["metadata"]["uid"]):
            await self._look_at(job, kind, obj)
        self._cache.put(kind, await self._kube.apply(kind, obj))

    def _was_free(self, kind: Kind, obj: Obj) -> bool:
        """Whether a dry run just now would have made the object: as good as a look, and one request less per child."""
        now = asyncio.get_running_loop().time()
        self._free = {address: when for address, when in self._free.items() if now - when < _FREE_SECONDS}
        return self._free.pop(_address(kind, obj), None) is not None

    async def _look_at(self, job: Obj, kind: Kind, obj: Obj) -> None:
        """Take what stands under the object's name into the cache. Raises ForeignChild when it is not ours."""
        meta = obj["metadata"]
        found = await self._kube.get(kind, meta["namespace"], meta["name"])
        if found is None:
            return
        self._cache.put(kind, trimmed(kind, found))
        if kind is not Kinds.SERVICE_ACCOUNT and job_uid_of(found) != job["metadata"]["uid"]:
            raise ForeignChild(kind, meta["name"])

    async def _patch(self, job: Obj, action: PatchChild) -> None:
        kind = kind_of(action.api_version, action.kind)
        namespace = job["metadata"]["namespace"]
        try:
            self._cache.put(kind, await self._kube.patch(kind, namespace, action.name, action.patch))
        except KubeError as error:
            if error.status != 404:
                raise

    async def _delete(self, job: Obj, action: DeleteChild) -> None:
        kind = kind_of(action.api_version, action.kind)
        namespace = job["metadata"]["namespace"]
        await self._kube.delete(kind, namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds)
        when = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        if kind is Kinds.SECRET:
            gone = self._cache.get(kind, namespace, action.name)
            if gone is not None:
                self._cache.remove(kind, gone)
        else:
            self._cache.mark_deleted(kind, namespace, action.name, action.uid, when)

    async def _set_finalizer(self, job: Obj, present: bool) -> None:
        """By JSON patch whose test fails if anybody changed the finalizers meanwhile; the next round looks again."""
        meta = job["metadata"]
        patch = finalizer_patch(meta, present)
        if not patch:
            return
        try:
            patched = await self._kube.patch(Kinds.MOERL_JOB, meta["namespace"], meta["name"], patch)
        except KubeError as error:
            if error.status == 404 and not present:
                return
            if error.invalid:  # how the server calls a failed test
                raise KubeError(409, "Conflict", error.message) from None
            raise
        self._cache.put(Kinds.MOERL_JOB, patched)


def finalizer_patch(meta: Obj, present: bool) -> list[dict[str, Any]]:
    """The JSON patch that adds or removes our finalizer, [] when there is nothing to do."""
    finalizers = list(meta.get("finalizers") or [])
    if present == (names.FINALIZER in finalizers):
        return []
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]}
    if not present:
        index = finalizers.index(names.FINALIZER)
        path = f"/metadata/finalizers/{index}"
        # The index is only right for the very list that was seen, hence the test of the value, not of the version:
        # unrelated changes of the job must not hold up its end.
        return [{"op": "test", "path": path, "value": names.FINALIZER}, {"op": "remove", "path": path}]
    if finalizers:
        return [test, {"op": "add", "path": "/metadata/finalizers/-", "value": names.FINALIZER}]
    return [test, {"op": "add", "path": "/metadata/finalizers", "value": [names.FINALIZER]}]


def _address(kind: Kind, obj: Obj) -> tuple[str, str, str]:
    return kind.plural, str(obj["metadata"]["namespace"]), str(obj["metadata"]["name"])


def is_passing(error: KubeError) -> bool:
    """A refusal that has nothing to do with the object: a full quota, or a namespace that is being deleted."""
    return error.status == 403 and ("exceeded quota" in error.message or is_terminating(error))


def is_terminating(error: KubeError) -> bool:
    """Nothing can be made in this namespace any more; what is left of the job goes with it."""
    return error.status == 403 and "being terminated" in error.message


def _with_password(obj: Obj) -> Obj:
    return {**obj, "stringData": {PASSWORD_KEY: secrets.token_urlsafe(_PASSWORD_BYTES)}}
