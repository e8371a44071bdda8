"""The local backend: a Cluster's brokers and jobs as processes on this machine.

It carries out the same plans as the Kubernetes backend. It owns the processes, ports and files
under `.headrace/<cluster>/`, and nothing else: `headrace_operator.plan` decides what should exist.
"""
