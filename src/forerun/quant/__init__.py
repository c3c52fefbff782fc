"""How weights are stored in fewer bits. It changes stored tensors before a model is built; it computes no model."""
