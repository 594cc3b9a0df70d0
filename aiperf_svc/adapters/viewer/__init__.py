"""Browser pages about the finished runs below a folder."""
