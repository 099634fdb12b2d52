"""crds/ and the chart's copies are what the models say, and the columns point at fields that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from moerl_operator.api import names, schema
from moerl_operator.api.status import Display


@pytest.mark.parametrize("folder", ["crds", "charts/moerl-operator/files/crds"])
def test_files_are_current(root: Path, folder: str) -> None:
    assert schema.main(["--check", str(root / folder)]) == 0
    assert {path.name for path in (root / folder).iterdir()} == set(schema.crds())


def test_a_stale_file_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = schema.write(tmp_path)
    assert schema.stale(tmp_path) == []
    written[0].write_text("changed")
    written[1].unlink()
    assert schema.main(["--check", str(tmp_path)]) == 1
    assert str(written[0]) in capsys.readouterr().err


@pytest.mark.parametrize("document", schema.crds().values(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_yaml_reads_back_alike(document: dict[str, Any]) -> None:
    assert yaml.safe_load(schema.render(document)) == document


def test_a_decimal_default_is_quoted() -> None:
    assert "default: '1e-6'" in schema.render(schema.job_crd())


@pytest.mark.parametrize("document", schema.crds().values(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_every_column_points_at_a_field_of_its_type(document: dict[str, Any]) -> None:
    version = document["spec"]["versions"][0]
    for column in version["additionalPrinterColumns"]:
        if column["jsonPath"].startswith(".metadata."):
            continue
        node = version["schema"]["openAPIV3Schema"]
        for part in column["jsonPath"].strip(".").split("."):
            node = node["properties"][part]
        assert node["type"] == column["type"], column["name"]


def test_the_first_screen_is_the_designed_table() -> None:
    columns = schema.job_crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if not column.get("priority")]
    assert shown == ["State", "Iteration", "Reward", "Trainers", "Rollouts", "Samples/s", "Transport", "$/h", "Age"]
    assert len(shown) - 1 == len(Display.model_fields)


def test_the_longest_generated_name_is_a_dns_label() -> None:
    pod = f"{names.rollout_attempt('j' * names.MAX_JOB_NAME, 'p' * names.MAX_POOL_NAME, 1000, 9999)}-999"
    assert len(pod) <= 63
