"""Changes of configuration: what AlterConfigs and its kin may change, and what follows from it."""
