"""The local backend: a Cluster's brokers and jobs as processes of this machine.

It performs the same plans as the Kubernetes backend. It owns processes, ports, files under
`.headrace/<cluster>/` and nothing else: what should exist is decided in `headrace_operator.plan`.
"""
