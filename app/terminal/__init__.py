"""What both command lines share: help texts, output formats and tables that fit a terminal."""
