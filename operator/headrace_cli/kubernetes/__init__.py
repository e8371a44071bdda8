"""Clusters in Kubernetes, reached from outside with a kubeconfig."""
