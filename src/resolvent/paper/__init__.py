"""The paper, reproduced: every figure, table, theorem and claim as data, run through the run store, with a verdict."""
