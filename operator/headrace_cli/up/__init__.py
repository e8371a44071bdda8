"""`headrace up`: the session that runs a cluster, and what it shows."""
