"""Logs of schedules: kernels, their forms and axes, host steps and memory."""
