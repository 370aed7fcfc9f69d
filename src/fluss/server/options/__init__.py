"""Options of servers: what each means, where its value comes from, and what they say together."""
