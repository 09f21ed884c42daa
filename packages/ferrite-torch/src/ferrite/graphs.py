"""Logs of graphs: as they are after the passes, and with ``+ferrite`` as they were lowered."""
