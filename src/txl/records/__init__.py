"""The files a run leaves, read and written whole: needs neither torch nor Lightning."""
