"""The experience buffer: group leases, samples and the policy's HEAD on one Redis or Valkey server."""
