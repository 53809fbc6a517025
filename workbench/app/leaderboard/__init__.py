"""`workbench leaderboard`: the command, its output and its page."""
