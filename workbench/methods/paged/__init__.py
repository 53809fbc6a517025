"""Requests over a pool of pages."""
