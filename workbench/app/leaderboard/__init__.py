"""`workbench leaderboard`: its command, what it prints and its page."""
