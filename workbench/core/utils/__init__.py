"""What every folder uses and no reader of attention needs: files, checks of values, processes, views."""
