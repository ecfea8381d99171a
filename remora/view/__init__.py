"""``remora view``: a page that shows what a memory does, while a server runs."""
