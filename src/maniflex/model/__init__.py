"""What people declare, read once into frozen values."""
