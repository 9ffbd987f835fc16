"""Diagnosis of this machine: `sax doctor`."""
