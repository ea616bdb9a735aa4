"""What makes a model of the user's own fast, and proves it; claims of one's own."""
