"""Users on other machines, reached through Flower: `FlowerEngine` on the server's side, `Node` on the users'.

Only `grid.py`, `forward.py` and the records of `packets.py` import Flower, when they are used.
"""
