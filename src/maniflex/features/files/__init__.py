"""Files over HTTP: forms, downloads, the routes of files, and URLs in answers."""
