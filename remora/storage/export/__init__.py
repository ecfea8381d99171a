"""What an export holds, and its two forms."""
