"""Logs of graphs that run op by op while they are compiled, and of when they switch."""
