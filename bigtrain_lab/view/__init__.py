"""What people look at: figures, the player, pages, reports; each draws what a trace answers."""
