"""The operator on Kubernetes: watches resources, and reconciles clusters by the plans of `plan`."""
