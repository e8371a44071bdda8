"""The brokers of a Cluster: their objects, identities and addresses, rolling, disks and zones."""
