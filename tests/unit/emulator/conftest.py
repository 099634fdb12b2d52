"""The emulator's own tests talk to it with stock boto3 clients over HTTP."""

from support.emulator import _shared_emulator, emulator

__all__ = ["_shared_emulator", "emulator"]
