"""The text form of schedules: in comes a schedule, out goes its text, and back again, the same to the letter.

`parse_schedule` is for everybody; ``str(schedule)`` calls `printer`.
"""
