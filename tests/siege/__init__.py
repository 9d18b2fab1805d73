"""A siege, seeded: of the run store, the live page, and federations from outside and inside. `make siege` runs it."""
