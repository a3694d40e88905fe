"""What the system can do, as functions of a session: every write to the database is here."""
