"""What a wake comes to of which a call of the driver fails."""

ENDED = "the process ends"
HALF = "half awake"
LOST = "bytes are lost"
NOT_LATER = "all as before, and a later wake fails"
WORKS_LATER = "all as before, and works later"
AWAKE = "wakes all the same"
