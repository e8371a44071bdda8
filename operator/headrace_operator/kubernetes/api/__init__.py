"""The API server as the operator reaches it: requests, watches, what they have shown, the lease."""
