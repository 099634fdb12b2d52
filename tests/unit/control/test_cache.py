"""The cache against late, doubled and reordered news."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moerl_operator.api import names
from moerl_operator.control.cache import Cache
from moerl_operator.kube.api import Kinds


def pod(name: str, version: int, *, uid: str = "", job: str = "", **status: Any) -> dict[str, Any]:
    labels = {names.LABEL_JOB_UID: job} if job else {}
    meta = {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**meta, "labels": labels, "managedFields": [1]}, "status": status}


def test_an_older_version_changes_nothing() -> None:
    cache = Cache()
    assert cache.put(Kinds.POD, pod("a", 5, phase="Running"))
    assert not cache.put(Kinds.POD, pod("a", 4, phase="Pending"))
    assert not cache.put(Kinds.POD, pod("a", 5, phase="Pending"))

    seen = cache.get(Kinds.POD, "ns", "a")
    assert seen is not None
    assert seen["status"] == {"phase": "Running"}
    assert "managedFields" not in seen["metadata"]


def test_a_late_event_does_not_raise_the_dead() -> None:
    cache = Cache()
    cache.put(Kinds.POD, pod("a", 5))
    cache.remove(Kinds.POD, pod("a", 7))

    assert not cache.put(Kinds.POD, pod("a", 6))
    assert cache.get(Kinds.POD, "ns", "a") is None


def test_the_funeral_of_the_old_one_leaves_its_younger_namesake_alone() -> None:
    cache = Cache()
    cache.put(Kinds.POD, pod("a", 5, uid="old"))
    cache.put(Kinds.POD, pod("a", 9, uid="new"))

    assert not cache.remove(Kinds.POD, pod("a", 8, uid="old"))
    seen = cache.get(Kinds.POD, "ns", "a")
    assert seen is not None
    assert seen["metadata"]["uid"] == "new"


def test_children_are_found_by_the_uid_of_their_job() -> None:
    cache = Cache()
    cache.put(Kinds.POD, pod("b", 1, job="u1"))
    cache.put(Kinds.POD, pod("a", 2, job="u1"))
    cache.put(Kinds.POD, pod("c", 3, job="u2"))

    assert [child["metadata"]["name"] for child in cache.of_job("u1", Kinds.POD)] == ["a", "b"]
    cache.put(Kinds.POD, pod("a", 4, job="u2"))  # relabelled
    assert [child["metadata"]["name"] for child in cache.of_job("u1", Kinds.POD)] == ["b"]
    cache.remove(Kinds.POD, pod("b", 5, job="u1"))
    assert cache.of_job("u1", Kinds.POD) == ()


def test_a_full_list_removes_what_vanished_unseen_but_spares_what_is_younger_than_the_list() -> None:
    cache = Cache()
    cache.put(Kinds.POD, pod("gone", 1))
    cache.put(Kinds.POD, pod("stays", 2))
    mark = cache.mark()
    cache.put(Kinds.POD, pod("ours", 9))  # made by us while the list was under way

    changed = cache.replace(Kinds.POD, [pod("stays", 2), pod("new", 3)], mark)

    assert sorted(obj["metadata"]["name"] for obj in changed) == ["gone", "new"]
    assert sorted(obj["metadata"]["name"] for obj in cache.all(Kinds.POD)) == ["new", "ours", "stays"]


def test_a_list_of_one_namespace_says_nothing_of_others() -> None:
    cache = Cache()
    cache.put(Kinds.POD, pod("a", 1))
    cache.replace(Kinds.POD, [], cache.mark(), namespace="other")
    assert cache.count(Kinds.POD) == 1


def test_a_child_we_deleted_is_seen_as_terminating_until_the_watch_says_more() -> None:
    cache = Cache()
    cache.put(Kinds.POD, pod("a", 1, uid="u"))
    cache.mark_deleted(Kinds.POD, "ns", "a", "u", "2026-01-01T00:00:00Z")

    seen = cache.get(Kinds.POD, "ns", "a")
    assert seen is not None
    assert seen["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    assert cache.put(Kinds.POD, pod("a", 2, uid="u"))


def test_values_of_secrets_are_not_kept() -> None:
    cache = Cache()
    secret = {"metadata": {"name": "s", "namespace": "ns", "uid": "u", "resourceVersion": "1"}, "data": {"p": "eA=="}}
    cache.put(Kinds.SECRET, secret)
    assert "data" not in (cache.get(Kinds.SECRET, "ns", "s") or {})


@given(st.permutations([(1, "put"), (2, "put"), (3, "put"), (4, "put"), (5, "remove")]), st.integers(0, 4))
def test_in_whatever_order_the_news_arrive_the_end_is_the_same(news: list[tuple[int, str]], doubled: int) -> None:
    cache = Cache()
    for version, what in [*news, news[doubled]]:
        if what == "put":
            cache.put(Kinds.POD, pod("a", version, uid="u", job="j"))
        else:
            cache.remove(Kinds.POD, pod("a", version, uid="u", job="j"))
    assert cache.get(Kinds.POD, "ns", "a") is None
    assert cache.of_job("j", Kinds.POD) == ()
