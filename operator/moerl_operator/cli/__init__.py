"""The command `moerl`, also as `kubectl moerl`."""
