"""Passes over tile programs: functions from a program to one that does the same."""
