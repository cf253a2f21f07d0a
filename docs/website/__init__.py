"""The site: the repository's own pages, the gallery and the explorer as static HTML (`make site`)."""
