"""Every way in which expert-parallel communication can refuse or fail, each raised on all ranks alike."""

from __future__ import annotations


class EpError(Exception):
    """Base of all errors of this package."""


class EpConfigError(EpError):
    """A configuration that no backend can run; the message names the field and the rule."""


class EpUnavailable(EpError):
    """The requested backend cannot run here; the message gives every reason found."""


class EpMismatch(EpError):
    """Ranks disagree about configuration, version or backend; the message names field and ranks."""


class EpInputError(EpError):
    """A rank called with tensors that break the configuration; the message names the rank and the rule."""


class EpOverflow(EpError):
    """More rows arrived than the stated capacity holds; none was dropped in silence, the step is void."""


class EpTimeout(EpError):
    """A peer did not answer in time; the message names rank, peer and operation."""
