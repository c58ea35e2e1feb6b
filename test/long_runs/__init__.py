"""Runs of any length that crash, damage and load servers at random, each followed by every check: see test/proofs.md."""
