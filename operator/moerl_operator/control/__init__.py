"""The control loop: watches feed a cache and a queue, workers observe, plan, apply and write the status."""
