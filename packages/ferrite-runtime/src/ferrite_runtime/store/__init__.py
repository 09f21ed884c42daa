"""What is kept between runs: in comes an entry by kind and key, out come its bytes, whole or not at all.

One SQLite file on local disks, append-only packs where files cannot be locked. Compilation and tuning call it.
"""
