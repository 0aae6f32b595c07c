"""One TorchServe: its configuration, keys, process and interfaces."""
