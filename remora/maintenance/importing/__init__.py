"""Import of what other products export: each file is translated into an export of remora."""
