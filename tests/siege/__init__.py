"""A siege of the run store: damaged folders, hostile files, kills and full disks, seeded. `make siege` runs it."""
