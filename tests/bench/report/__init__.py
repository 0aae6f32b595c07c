"""`scripts/bench` without a subcommand: all that is promised of speed, measured in one run and told."""
