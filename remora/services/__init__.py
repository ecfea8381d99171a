"""What handles stand on."""
