"""`moerl`: the operator's own commands, and those of whatever extras are installed beside it.

Further groups come from the entry-point group `moerl.commands`. They are loaded only when called, so that a missing
extra costs one clear line when its command is used and nothing otherwise.
"""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn

import click

from moerl_operator import __version__

ENTRY_POINTS = "moerl.commands"
# name -> (module:attribute, one line of help)
_OWN = {
    "operator": ("moerl_operator.cli.operator:operator", "Run the operator."),
    "crds": ("moerl_operator.cli.crds:crds", "Print the CustomResourceDefinitions."),
    "get": ("moerl_operator.cli.jobs:get", "Show jobs."),
    "describe": ("moerl_operator.cli.jobs:describe", "Show everything about one job."),
}
_HELP = {
    "cluster": "A Kubernetes cluster on this machine.",
    "aws": "The AWS emulator.",
    "image": "Images of the operator and the runtime.",
    "demo": "The whole way once, from manifest to trained policy.",
    "local": "Run a manifest as local processes, without Kubernetes.",
    "bench": "Benchmarks.",
}


class Commands(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, whether or not their extra is installed."""
        return sorted({*_OWN, *(point.name for point in _points())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or one that says what is missing."""
        if cmd_name in _OWN:
            module, _, attribute = _OWN[cmd_name][0].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        point = next((point for point in _points() if point.name == cmd_name), None)
        return _load(point) if point else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Help without importing every command."""
        rows = [(name, _OWN[name][1] if name in _OWN else _HELP.get(name, "")) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="moerl")
def main() -> None:
    """Reinforcement learning of Mixture-of-Experts models on Kubernetes."""


def _points() -> list[EntryPoint]:
    return sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)


def _load(point: EntryPoint) -> click.Command:
    try:
        loaded: click.Command = point.load()
    except (ImportError, AttributeError) as error:
        return _unavailable(point.name, error)
    return loaded


def _unavailable(name: str, error: Exception) -> click.Command:
    """Stands for a command whose code cannot be imported."""
    missing = getattr(error, "name", None)
    extra = {"local": "runtime", "bench": "bench"}.get(name, "local")
    what = f"needs the module {missing}" if missing else f"cannot be loaded ({error})"

    @click.command(name, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def unavailable() -> NoReturn:
        raise click.ClickException(f"`moerl {name}` {what}, which is not installed; try: pip install 'moerl[{extra}]'")

    return unavailable
