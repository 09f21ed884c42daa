"""The search for the fastest config of one kernel: in come candidates and a workbench, out goes a measured choice.

Engines call it at the first launch, `ahead_of_time` for whole programs; choices are pinned, agreed on or remembered.
"""
