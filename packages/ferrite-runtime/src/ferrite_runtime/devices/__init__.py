"""Devices: facts about GPUs from descriptor files and from torch, and the driver's calls that launch on them.

In comes the name or number of a device; out go `DeviceFacts`, loaded functions and streams. Policies and engines ask.
A new GPU is a JSON file beside these modules, as ``ferrite-runtime devices --describe`` prints it.
"""
