"""The torch.compile backend of Ferrite."""

__version__ = "0.1.0"
