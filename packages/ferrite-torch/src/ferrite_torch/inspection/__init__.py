"""Explanations: in come a model and inputs, out goes what became of it, and the model is left as it was.

`ferrite_torch.explain` calls it.
"""
