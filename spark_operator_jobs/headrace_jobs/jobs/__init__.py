"""Runnable jobs: `python -m headrace_jobs.jobs.<name>`, one module each."""
