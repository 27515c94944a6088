"""From a proposal's text (a model's reply, or a patch file) to new texts of files, or to words that can be sent back.

All or nothing, in memory. The result maps paths to text, so that a link, a mode, a submodule or a rename cannot be
expressed in it; a patch that tries is refused. What is judged is the result: no header of a diff is believed. Read are
unified diffs, SEARCH/REPLACE blocks and whole files in fences, mixed and for several files, in their order.

Where an edit goes: a hunk at the place its header gives if its lines stand there; else any edit where its lines stand
once; else where they stand once but for white space. Never at one of several places, and never at the nearest. Lines
of context stay as the file has them. What a file ends its lines with, its byte order mark and whether its last line is
ended (unless a diff says so) stay too. A block without a path counts where nothing else is proposed and one file is
mutable: the largest one, of those the last; for a `.py` file one that is called Python, if there is one.

Thought is no proposal: what follows a line that begins with `<think>`, up to `</think>`, and all before a `</think>`
that nothing opened; inside of fences, hunks and blocks the tags are text.

Not known: whether a language other than Python parses, what an edit means, and names that only a file system takes for
the same (beyond case, composition and width of letters). A call in dead code counts as a call.
"""
