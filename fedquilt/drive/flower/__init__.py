"""The Flower driver: the same rounds, messages, guard and memories, carried by Flower between real devices.

``server`` and ``client`` are the two apps; nothing outside this package imports ``flwr``.  Flower starts a
process for each message, so ``client`` is thin and quick: it forwards to a ``worker`` that lives as long as
its node.  ``carry`` is the driver; it stands on ``post``, which sends and fetches letters over a Grid.
"""
