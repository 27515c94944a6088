"""Directories in which trials of a code study run, each holding exactly one candidate: a base and an overlay.

Knows git, files and folders. Nothing of the user's is written, except by what is asked to. A git of ours never works in
a folder that a trial could write.

    base         what a folder has to hold: a base, an overlay, both
    snapshots    the base: what the user's folder holds when a study begins
    links        what of the user's folder a slot has a link to
    slots        the directories of a study, by number of lane
    slot         one of them: made, put right, and asked what a trial changed
    places       where the slots of a study are: who holds them, and how they go
    leaving      a patch, a branch, or files in the user's folder
    git, files, trash    what those work with

Each part is imported by its name, and brings only what it needs. Not covered: a process that a trial left behind could
write on: whoever runs the trial kills its whole tree. A slot has no `.git`, but git searches upwards: a place inside of
some checkout shows that one.
"""
