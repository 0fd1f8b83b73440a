"""Producers, consumers and administration of a Seglog broker."""
