"""The one exception of the image tools, so that the command line can print it without a traceback."""

from __future__ import annotations


class ImageError(Exception):
    """What went wrong and how to mend it, in one line for a person."""
