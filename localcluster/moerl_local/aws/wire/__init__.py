"""Between HTTP and Python values, driven by botocore's own service models: no message is shaped by hand."""
