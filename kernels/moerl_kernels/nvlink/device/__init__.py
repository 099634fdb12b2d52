"""The kernels, in Triton. Imported only when a backend is made: without a GPU build of torch there is no Triton."""
