"""The `hopserve` command line; one module per group of subcommands."""
