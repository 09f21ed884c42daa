"""The torch.compile backend of Ferrite: ``torch.compile(model, backend="ferrite")``."""

__version__ = "0.1.0"
