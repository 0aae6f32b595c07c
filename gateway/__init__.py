"""What stands in front of TorchServe: so far, what it takes to start it and to speak with it."""
