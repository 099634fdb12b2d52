"""What tests share: the cluster they run against and ways to wait for it."""
