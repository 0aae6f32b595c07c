"""A snapshot as PyG knows graphs: stores, a sampler and loaders, so that the files that are served train."""
