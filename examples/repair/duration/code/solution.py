def solve(text):
    raise NotImplementedError
