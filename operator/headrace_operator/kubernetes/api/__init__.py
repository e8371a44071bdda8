"""The operator's access to the API server: requests, watches, their cache, the lease."""
