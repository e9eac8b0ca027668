"""A report as text: Markdown, LaTeX, CSV, HTML pages, the console, W&B."""
