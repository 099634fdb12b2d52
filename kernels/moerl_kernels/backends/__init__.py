"""The backends, by name. None stands in for another: `create` makes the one asked for or says why not."""
