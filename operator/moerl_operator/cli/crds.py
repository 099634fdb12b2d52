"""`moerl crds`: the resource definitions, for those who do not install the chart, and for the repository's crds/."""

from __future__ import annotations

from pathlib import Path

import click

from moerl_operator.api import schema

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option("--write", "write_to", type=_FOLDER, help="Write one file per definition into this folder.")
@click.option("--check", "check_in", type=_FOLDER, help="Fail when the files in this folder are not current.")
def crds(write_to: Path | None, check_in: Path | None) -> None:
    """Print the CustomResourceDefinitions as YAML, for `moerl crds | kubectl apply --server-side -f -`."""
    if check_in:
        stale = schema.stale(check_in)
        if stale:
            files = ", ".join(str(path) for path in stale)
            raise click.ClickException(f"not current: {files}; run `moerl crds --write {check_in}`")
    elif write_to:
        for path in schema.write(write_to):
            click.echo(path)
    else:
        click.echo("---\n".join(schema.render(document) for document in schema.crds().values()), nl=False)
