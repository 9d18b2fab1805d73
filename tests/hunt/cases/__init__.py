"""One module for each part of the package that is hunted through."""
