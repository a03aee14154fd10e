"""One layer's share of G in its stored forms: an abstract `Block`, and one file for each kind."""
