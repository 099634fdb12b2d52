"""The resources as pydantic models: the one source of the CRDs and of every name the project uses."""
