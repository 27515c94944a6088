def solve(intervals):
    raise NotImplementedError
