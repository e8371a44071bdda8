"""SparkApplications: what is observed of one, its state, and the next step."""
