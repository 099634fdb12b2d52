"""`moerl local`: the same manifest as plain processes on this machine, without Kubernetes."""
