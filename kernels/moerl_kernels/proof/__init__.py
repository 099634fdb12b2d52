"""Which path the bytes of expert parallelism took, proven by counters rather than claimed by a log.

    evidence = ...            # gathered before and after one exchange: see evidence.Evidence
    found = verdict(evidence) # EFAGDA, EFAProxy, NVLink, SHM, TCP, Local or Unknown, with reasons

`moerl-kernels preflight` does both on a node. Nothing in here imports torch but `device_exchange`, which is a program
of its own: 20 seconds and a gigabyte are too much for a proof that sockets and counters can give.
"""

from moerl_kernels.proof.evidence import Evidence
from moerl_kernels.proof.verdict import Outcome, Verdict, compare, verdict

__all__ = ["Evidence", "Outcome", "Verdict", "compare", "verdict"]
