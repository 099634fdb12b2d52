"""What the watches, the lists and our own writes have shown of the cluster, by kind, namespace and name.

Three sources write here and none is trusted to be in order: an object is replaced only by a newer
version of itself, a deleted UID never comes back, and an answer to our own write is put in at once, so
that the next plan sees it (read your writes) instead of making the child again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from moerl_operator.api import names
from moerl_operator.kube.api import Kind, Kinds, Obj

# Deleted UIDs to remember; an event of a dead object can only be as late as the watch, so a few minutes' worth.
TOMBSTONES = 20_000

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""


@dataclass(slots=True)
class _Entry:
    obj: Obj
    version: int
    sequence: int  # of the write into this cache, to tell what came after a list was asked for


class Cache:
    """A view of the cluster that only moves forward. For one event loop; nothing here waits."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[Key, _Entry]] = {}
        self._by_job: dict[str, dict[tuple[str, Key], _Entry]] = {}  # job UID -> (plural, key) -> entry
        self._uids_of_name: dict[Key, dict[str, int]] = {}  # (namespace, job name) -> UID -> number of children
        self._tombs: OrderedDict[str, int] = OrderedDict()
        self._sequence = 0

    # --- writing ---------------------------------------------------------------------------------------

    def put(self, kind: Kind, obj: Obj) -> bool:
        """Take in an object; False when it is older than, or equal to, what is known."""
        meta = obj["metadata"]
        uid, version = meta.get("uid", ""), version_of(obj)
        if uid in self._tombs:
            return False
        key = key_of(obj)
        known = self._kinds.setdefault(kind.plural, {}).get(key)
        if known is not None and known.version >= version:
            return False
        if known is not None:
            self._unindex(kind, key, known)
        self._sequence += 1
        entry = _Entry(trimmed(kind, obj), version, self._sequence)
        self._kinds[kind.plural][key] = entry
        self._index(kind, key, entry)
        return True

    def remove(self, kind: Kind, obj: Obj) -> bool:
        """Bury an object by UID; False when it was not known. A younger namesake stays."""
        uid = obj["metadata"].get("uid", "")
        if uid:
            self._tombs[uid] = version_of(obj)
            while len(self._tombs) > TOMBSTONES:
                self._tombs.popitem(last=False)
        key = key_of(obj)
        known = self._kinds.get(kind.plural, {}).get(key)
        if known is None or known.obj["metadata"].get("uid", "") != uid:
            return False
        self._unindex(kind, key, known)
        del self._kinds[kind.plural][key]
        return True

    def mark(self) -> int:
        """A point in time to give to replace(): take it before asking the server for the list."""
        return self._sequence

    def replace(self, kind: Kind, objects: Iterable[Obj], mark: int, *, namespace: str | None = None) -> list[Obj]:
        """Take in a full list asked for after `mark`; returns what it changed, gone objects included.

        What was put in after `mark` is kept although the list lacks it: the list may be older.
        """
        listed = {key_of(obj): obj for obj in objects}
        changed = [obj for obj in listed.values() if self.put(kind, obj)]
        for key, entry in list(self._kinds.get(kind.plural, {}).items()):
            in_scope = namespace is None or key[0] == namespace
            if in_scope and key not in listed and entry.sequence <= mark:
                self.remove(kind, entry.obj)
                changed.append(entry.obj)
        return changed

    def mark_deleted(self, kind: Kind, namespace: str, name: str, uid: str, when: str) -> None:
        """We have deleted this object: until the watch says more, it is seen as terminating."""
        known = self._kinds.get(kind.plural, {}).get((namespace, name))
        if known is not None and known.obj["metadata"].get("uid") == uid:
            meta = {"deletionTimestamp": when, **known.obj["metadata"]}
            known.obj = {**known.obj, "metadata": meta}

    def _index(self, kind: Kind, key: Key, entry: _Entry) -> None:
        if owner := job_uid_of(entry.obj):
            self._by_job.setdefault(owner, {})[(kind.plural, key)] = entry
            counts = self._uids_of_name.setdefault((key[0], _job_name_of(entry.obj)), {})
            counts[owner] = counts.get(owner, 0) + 1

    def _unindex(self, kind: Kind, key: Key, entry: _Entry) -> None:
        owner = job_uid_of(entry.obj)
        children = self._by_job.get(owner) if owner else None
        if children is None or children.pop((kind.plural, key), None) is None:
            return
        if not children:
            del self._by_job[owner]
        name = (key[0], _job_name_of(entry.obj))
        counts = self._uids_of_name[name]
        counts[owner] -= 1
        if not counts[owner]:
            del counts[owner]
        if not counts:
            del self._uids_of_name[name]

    # --- reading ---------------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        """The object as last seen."""
        entry = self._kinds.get(kind.plural, {}).get((namespace or "", name))
        return entry.obj if entry else None

    def all(self, kind: Kind) -> Iterator[Obj]:
        """Every object of a kind."""
        return (entry.obj for entry in self._kinds.get(kind.plural, {}).values())

    def of_job(self, uid: str, kind: Kind) -> tuple[Obj, ...]:
        """The children of the job with this UID, by name."""
        children = self._by_job.get(uid, {})
        found = [entry.obj for (plural, _), entry in children.items() if plural == kind.plural]
        return tuple(sorted(found, key=lambda obj: obj["metadata"]["name"]))

    def of_job_name(self, namespace: str, name: str, kind: Kind) -> Iterator[Obj]:
        """Children labelled with the job's name, whichever UID they are of."""
        uids = self._uids_of_name.get((namespace, name), {})
        return (obj for uid in list(uids) for obj in self.of_job(uid, kind))

    def job_of_uid(self, uid: str) -> Obj | None:
        """The MoERLJob with this UID."""
        return next((job for job in self.all(Kinds.MOERL_JOB) if job["metadata"]["uid"] == uid), None)

    def count(self, kind: Kind) -> int:
        """How many objects of a kind are known."""
        return len(self._kinds.get(kind.plural, {}))


def key_of(obj: Obj) -> Key:
    """(namespace, name) of an object."""
    meta = obj["metadata"]
    return (meta.get("namespace") or "", meta["name"])


def version_of(obj: Obj) -> int:
    """The resourceVersion as a number; the server's are revisions of one etcd and grow."""
    version = obj["metadata"].get("resourceVersion") or "0"
    return int(version) if version.isdigit() else 0


def job_uid_of(obj: Obj) -> str:
    """UID of the job that an object is labelled as a child of, or ''."""
    return str((obj["metadata"].get("labels") or {}).get(names.LABEL_JOB_UID) or "")


def _job_name_of(obj: Obj) -> str:
    return str((obj["metadata"].get("labels") or {}).get(names.LABEL_JOB) or "")


def trimmed(kind: Kind, obj: Obj) -> Obj:
    """The object without what no policy reads and what would make up most of the memory."""
    meta = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    slim = {**obj, "metadata": meta, "apiVersion": kind.api_version, "kind": kind.kind}
    if kind.plural == Kinds.NODE.plural:
        status = obj.get("status") or {}
        slim["status"] = {key: value for key, value in status.items() if key != "images"}
    if kind.plural == Kinds.SECRET.plural:
        slim = {key: value for key, value in slim.items() if key not in ("data", "stringData")}
    return slim
