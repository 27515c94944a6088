from metaloop.policies import params, sampled
from metaloop.testing_policies import PolicyConformance


class TestRandom(PolicyConformance):
    def policy(self, space, seed):
        return params.random()


class TestTpe(PolicyConformance):
    searches = True

    def policy(self, space, seed):
        return sampled.tpe()


class TestCmaes(PolicyConformance):
    searches = True

    def policy(self, space, seed):
        return sampled.cmaes()


class TestNsga2(PolicyConformance):
    searches = True

    def policy(self, space, seed):
        return sampled.nsga2()
