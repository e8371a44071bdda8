"""SparkApplications: what is seen of one, what state that is, and what is done next."""
