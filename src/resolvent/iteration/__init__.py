"""The scheme: what a round is, who takes part, how it is accelerated, and the loop. Needs torch and numpy only."""
