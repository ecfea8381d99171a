"""The journal's queries, for any database with SQL: what they answer. The SQL is the database's."""
