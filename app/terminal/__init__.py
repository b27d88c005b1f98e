"""Help texts, object files, output formats and tables, for both command lines."""
