"""Pages in a browser over the finished runs below a folder."""
