"""Pure rules of the job runner: words, states, parsing, ordering, money. No database, no broker."""
