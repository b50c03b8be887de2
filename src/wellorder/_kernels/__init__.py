"""Arrays in, arrays out: balancing and reordering."""
