"""The AWS half of the operator: what is there for a job, and the few mutations that the policy may ask for."""
