"""Kubernetes objects as dicts, from resources and assignments. Pure: no client, no clock."""
