"""`moerl aws`, against a running emulator."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from moerl_local.aws.cli import aws
from support.emulator import Emulator


def run(emulator: Emulator, *words: str) -> Result:
    return CliRunner().invoke(aws, ["--url", emulator.url, *words])


def test_state_is_a_table_or_json(emulator: Emulator) -> None:
    emulator.create_group("g", size=2)
    lines = run(emulator, "state").output.splitlines()
    assert lines[1].split() == ["g", "ACTIVE", "c7i.4xlarge", "2", "2", "2"]
    assert json.loads(run(emulator, "state", "--json").output)["leftovers"]["nodeGroups"] == ["moerl-local/g"]


def test_faults_and_clock(emulator: Emulator) -> None:
    added = run(emulator, "fault", "add", "insufficient-capacity", "zone=us-east-1a", "available=2")
    assert added.exit_code == 0
    listed = run(emulator, "fault", "list").output.split()
    assert listed == [added.output.strip(), "insufficient-capacity", "zone=us-east-1a", "available=2"]
    assert run(emulator, "fault", "clear").output == "1 lifted\n"
    before = emulator.state()["now"]
    said = run(emulator, "clock", "--advance", "60").output
    assert said.startswith(f"{before + 60:.0f} s; stands still until advanced")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fault", "add", "bogus"], "is not one of"),
        (["fault", "add", "throttle", "service"], "write FIELD=VALUE"),
        (["fault", "add", "throttle", "bogus=1"], "bogus: Extra inputs are not permitted"),
        (["fault", "clear", "nothing"], "there is no fault nothing"),
    ],
)
def test_mistakes_get_one_line(emulator: Emulator, words: list[str], message: str) -> None:
    result = run(emulator, *words)
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


def test_nobody_there(emulator: Emulator) -> None:
    result = CliRunner().invoke(aws, ["--url", "http://127.0.0.1:9", "state"])
    assert result.exit_code == 1
    assert "no AWS emulator answers at http://127.0.0.1:9" in result.output


def test_the_shell_lines_point_at_it(emulator: Emulator) -> None:
    assert f"export AWS_ENDPOINT_URL={emulator.url}" in run(emulator, "env").output
