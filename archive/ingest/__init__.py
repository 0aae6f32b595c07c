"""Files of mutations, in batches as a live graph takes them: `files.open_mutations` is where it starts."""
