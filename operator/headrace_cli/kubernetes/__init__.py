"""Clusters in Kubernetes, reached from outside by what a kubeconfig gives."""
