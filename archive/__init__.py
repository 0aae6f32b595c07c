"""What goes into a model archive, and how it is made: data, example training, export and packing."""
