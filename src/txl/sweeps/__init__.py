"""Many runs in one directory: their definition, jobs, progress, and what is measured of them afterwards."""
