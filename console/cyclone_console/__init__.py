"""Programs for the terminal and the browser that show PostgreSQL's VACUUMs."""
