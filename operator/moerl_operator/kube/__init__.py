"""The Kubernetes API as this project uses it: a small protocol over plain dicts, and its client."""
