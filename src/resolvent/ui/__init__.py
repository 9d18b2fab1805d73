"""A live page of runs, an explorer of the scheme, and the reproduced paper: `resolvent ui`. It needs the extra `ui`."""
