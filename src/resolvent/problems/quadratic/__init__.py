"""Quadratics: one decomposition per user, from which every operator follows."""
