"""Help texts, output formats and tables that fit a terminal, for both command lines."""
