"""The demo: `python -m ferrite_torch.demo` compiles two small models, runs them and shows what became of them.

Nothing comes in but options; out go lines for people. Nothing else calls it.
"""
