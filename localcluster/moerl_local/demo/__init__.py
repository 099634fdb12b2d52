"""`moerl demo`: from a checkout to a trained policy in real pods on one machine, with a report to look at."""
