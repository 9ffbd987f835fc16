"""PathwaysJobs: one model server for several slices, and the JobSets that their controller makes.

The controller is github.com/google/pathways-job (release 0.1.4 was read).
"""
