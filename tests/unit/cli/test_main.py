"""The command line: what it offers without extras, and one line where something is missing."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
from click.testing import CliRunner

from moerl_operator.cli import main as main_module
from moerl_operator.cli.main import main
from moerl_operator.settings import Settings, SettingsError


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    for name in ("MOERL_CLUSTER_NAME", "MOERL_KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    return CliRunner()


def test_help_names_every_command(runner: CliRunner) -> None:
    result = runner.invoke(main, ["--help"])
    assert result.exit_code == 0
    for name in ("operator", "crds", "cluster", "demo"):
        assert name in result.output


def test_a_command_whose_extra_is_absent_says_how_to_get_it(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("cluster", "no_such_module.cli:cluster", main_module.ENTRY_POINTS)
    monkeypatch.setattr(main_module, "_points", lambda: [point])
    assert "cluster" in runner.invoke(main, ["--help"]).output

    result = runner.invoke(main, ["cluster", "up", "--name", "x"])

    assert result.exit_code == 1
    assert "needs the module no_such_module" in result.output
    assert "pip install 'moerl[local]'" in result.output
    assert "Traceback" not in result.output


def test_an_unknown_command_is_refused(runner: CliRunner) -> None:
    assert runner.invoke(main, ["nonsense"]).exit_code == 2


def test_crds_are_printed_for_kubectl(runner: CliRunner) -> None:
    result = runner.invoke(main, ["crds"])
    assert result.output.count("kind: CustomResourceDefinition") == 2


def test_an_operator_without_cluster_name_ends_with_one_line(runner: CliRunner) -> None:
    result = runner.invoke(main, ["operator", "run"])
    assert result.exit_code == 1
    assert result.output == (
        "Error: the name of the EKS cluster is not set: give --cluster-name or the environment variable "
        "MOERL_CLUSTER_NAME\n"
    )


def test_settings_come_from_the_environment_and_options_win() -> None:
    environ = {
        "MOERL_CLUSTER_NAME": "c",
        "MOERL_WATCH_NAMESPACES": "a, b,",
        "MOERL_HTTP_PORT": "9000",
        "MOERL_POD_NAME": "pod-1",
    }
    settings = Settings.load(environ, http_port=9001, watch_namespaces=(), installation=None)
    assert settings.cluster_name == "c"
    assert settings.watch_namespaces == ("a", "b")
    assert settings.http_port == 9001
    assert settings.identity == "pod-1"
    assert Settings.load(environ, watch_namespaces=("x",)).watch_namespaces == ("x",)


def test_each_process_has_an_identity_of_its_own_by_default() -> None:
    assert Settings.load({"MOERL_CLUSTER_NAME": "c"}).identity


@pytest.mark.parametrize("port", ["eighty", "-1", "70000"])
def test_a_wrong_number_is_named(port: str) -> None:
    with pytest.raises(SettingsError, match=r"MOERL_HTTP_PORT|http_port"):
        Settings.load({"MOERL_CLUSTER_NAME": "c", "MOERL_HTTP_PORT": port})
