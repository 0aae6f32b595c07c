"""The names of the files of an export, beside the model's own."""

SIGNATURE_NAME = "signature.json"
#: Metrics of the training, which workers do not read.
TRAINING_NAME = "training.json"
