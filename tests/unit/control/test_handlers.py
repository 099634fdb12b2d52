"""kopf's settings, each of which has been somebody's outage."""

from __future__ import annotations

import kopf

from moerl_operator.control import handlers
from moerl_operator.control.kinds import CHILD_SELECTOR, CHILDREN, WATCHED
from moerl_operator.kube.api import Kinds


def test_kopf_neither_stores_nor_compares_nor_limits_nor_pauses() -> None:
    settings = handlers.settings()
    assert settings.scanning.disabled
    assert settings.peering.standalone
    assert not settings.posting.enabled
    assert settings.queueing.worker_limit is None
    assert isinstance(settings.persistence.diffbase_storage, handlers.NoDiffBase)
    assert isinstance(settings.persistence.progress_storage, handlers.NoProgress)
    assert isinstance(settings.watching.server_timeout, int)
    assert settings.watching.client_timeout is not None
    assert settings.watching.client_timeout > settings.watching.server_timeout


def test_children_are_selected_by_the_server() -> None:
    selectors = handlers.settings().watching.label_selectors
    assert len(selectors) == len(CHILDREN)
    assert set(selectors.values()) == {CHILD_SELECTOR}


def test_values_of_secrets_do_not_stream_through_the_process() -> None:
    assert Kinds.SECRET not in WATCHED


def test_only_low_level_event_handlers_exist() -> None:
    """Any other kind of handler makes kopf write annotations or finalizers."""
    registry = handlers.registry(None, None, None)  # type: ignore[arg-type]
    assert isinstance(registry, kopf.OperatorRegistry)
    assert len(registry._watching.get_all_handlers()) == len(WATCHED)
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    assert not registry._indexing.get_all_handlers()
