"""Who carries orders and replies: the bytes on the wire, and the drivers that move them."""
