"""Live explorers (ipywidgets) over the figures of workbench.plots."""
