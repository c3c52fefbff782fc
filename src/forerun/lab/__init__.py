"""The laboratory: measuring, evaluating, training, tuning and quantizing. The engine never imports it."""
