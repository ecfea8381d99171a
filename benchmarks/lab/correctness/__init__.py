"""Programs that show what remora and its peers lose, double, refuse or leave behind."""
