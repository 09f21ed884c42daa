"""Where a store's entries lie: one SQLite file on local disks, append-only packs where files cannot be locked."""
