"""Newton's method for smooth convex functions: the prox, its safeguards, and certified minima."""
