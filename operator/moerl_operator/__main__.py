"""`python -m moerl_operator`: the `moerl` command where its script is not on the path, as in a mounted checkout."""

from __future__ import annotations

from moerl_operator.cli.main import main

if __name__ == "__main__":
    main()
