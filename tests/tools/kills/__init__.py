"""Hosts of one replica that are killed again and again while it serves."""
