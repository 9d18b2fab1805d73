"""What a user computes in a round, and how it is carried out on a problem."""
