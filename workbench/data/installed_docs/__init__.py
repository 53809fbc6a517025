"""Questions over the documentation that is installed with the packages."""
