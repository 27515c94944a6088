"""Packs things into boxes that hold 100 each: as few boxes as it can. This is the code that is improved."""


def pack(sizes):
    """Lists of sizes, one a box. Each thing goes into the first box that has room for it."""
    boxes = []
    for size in sizes:
        for box in boxes:
            if sum(box) + size <= 100:
                box.append(size)
                break
        else:
            boxes.append([size])
    return boxes
