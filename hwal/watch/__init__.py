"""A watch over a world of ranks (P5): who is stuck, who is gone, and where; it ends the ranks that wait for them.

pulse     what a rank is doing, told by attribute stores
spot      where a thread is, from its frames
watched   the main thread, and what the system knows of it
patience  how long a rank may go without progress
look      what a rank does right now, and whether that is progress
beat      what a rank tells rank 0 of itself, once a second
roll      what a rank has heard of the others
judge     beats -> what is wrong with the world, in words (pure)
link      the sockets between rank 0 and the others
stacks    the line at which another process is, its interpreter's lock held or not
watchdog  the thread that does all this on every rank
"""
