"""The database: tables, sessions and migrations. The database is the truth."""
