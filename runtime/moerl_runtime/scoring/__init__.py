"""Where rewards come from: the environment and reward services, pods of their own that the driver calls over HTTP."""
