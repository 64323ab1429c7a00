"""What cannot be written."""


class Unknown(Exception):
    """A module that cannot be written: what it is, where, and what to do."""


class NoLayer(Unknown):
    """No layer computes this. Perhaps an operator of PyTorch does."""
