"""`python -m moerl_kernels`: the same as `moerl-kernels`."""

from moerl_kernels.proof.cli import main

if __name__ == "__main__":
    main(prog_name="moerl-kernels")
