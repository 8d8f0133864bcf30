"""What tools and hooks need: injection markers, provider maps, time, principals."""
