"""What every tenant and user is owed and uses, and so whose turn it is."""
