"""Candidates' directories: the contract of a workspace, and whether its suite sees what breaks it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from metaloop.adapters.candidates import Candidates
from metaloop.adapters.workspace.snapshots import opened, snapshot
from metaloop.errors import UsageError
from metaloop.roles import Bench
from metaloop.terms import Terms
from metaloop.testing import WorkspaceConformance
from metaloop.values import Objective

TERMS = Terms("t", Objective("score", "max"), ("train",), "patches", {}, mutable=("src/**",), private=("data/secret*",))


class TestCandidates(WorkspaceConformance):
    kind = Candidates

    def workspace(self, tmp_path, root):
        repo = tmp_path / "study" / "s" / "base.git"
        base = opened(repo) if repo.exists() else snapshot(root, repo)
        return self.kind(repo, base, tmp_path / "place", TERMS, root)

    async def abandon(self, workspace):
        await workspace._slots.close_all(keep=True)


# ---- the suite notices what it is there for --------------------------------------------------------------------------


class WithoutOverlay(Candidates):
    async def open(self, lane, overlay):
        return await super().open(lane, {})


class Within(Candidates):
    """Its directories are in the user's folder."""

    def __init__(self, repo, base, place, terms, root):
        super().__init__(repo, base, root / "place", terms, root)


class Untidy(Candidates):
    """What was opened once is opened."""

    async def open(self, lane, overlay):
        known = self._place / str(lane)
        return str(known) if known.exists() else await super().open(lane, overlay)


class OneForAll(Candidates):
    async def open(self, lane, overlay):
        self._paths[lane], self._overlays[lane] = Path(await super().open(0, overlay)), overlay
        return str(self._paths[lane])


class Accuser(Candidates):
    async def touched(self, lane, paths):
        return sorted(paths)


class Blind(Candidates):
    async def touched(self, lane, paths):
        return [path for path in paths if not (self._paths[lane] / path).exists()]


class FollowsLinks(Candidates):
    async def touched(self, lane, paths):
        told = await super().touched(lane, paths)
        return [path for path in told if not (self._paths[lane] / path).is_symlink()]


class NeverGone(Candidates):
    async def touched(self, lane, paths):
        return await super().touched(lane, paths) or []


class Adopter(Candidates):
    """What is taken up is made anew."""

    async def adopt(self, lane, overlay):
        return await self.open(lane, overlay)


class Ruthless(Candidates):
    async def close(self):
        await super().close()
        shutil.rmtree(self._place, ignore_errors=True)


class NoRepository(Candidates):
    async def bench(self, lane, overlay, brief):
        path = Path(await self.open(lane, overlay))
        told = path.with_name("brief")
        told.write_text(brief)
        return Bench(str(path), brief, str(told))


class TwoCommits(Candidates):
    async def bench(self, lane, overlay, brief):
        bench = await super().bench(lane, overlay, brief)
        who = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", *who, "commit", "-qm", "again", "--allow-empty"], cwd=bench.cwd, check=True)
        return bench


class Mumbling(Candidates):
    async def bench(self, lane, overlay, brief):
        return await super().bench(lane, overlay, brief.strip())


class KeepsRepository(Candidates):
    async def open(self, lane, overlay):
        kept, git = self._place / "kept", self._place / str(lane) / ".git"
        if git.exists():
            shutil.copytree(git, kept)
        path = await super().open(lane, overlay)
        if kept.exists():
            shutil.copytree(kept, git)
        return path


class ScoresInPlace(Candidates):
    async def scoring(self, lane):
        return str(self._paths[lane])


class Deaf(Candidates):
    async def written(self, lane):
        return {}, ()


class Partial(Candidates):
    """Tells nothing of frozen files."""

    async def written(self, lane):
        files, new = await super().written(lane)
        return {path: text for path, text in files.items() if path.startswith("src/")}, new


class TellsLitter(Candidates):
    async def written(self, lane):
        files, new = await super().written(lane)
        litter = [path.relative_to(self._paths[lane]).as_posix() for path in self._paths[lane].rglob("*.pyc")]
        return {**files, **dict.fromkeys(litter, "")}, [*new, *litter]


class Lenient(Candidates):
    async def written(self, lane):
        try:
            return await super().written(lane)
        except UsageError:
            return {}, ()


class Keeper(Candidates):
    async def close(self):
        if self._made is not None:
            await self._made.close_all(keep=True)


class Clumsy(Candidates):
    """Writes the user's file again, as it was."""

    async def open(self, lane, overlay):
        (self._root / "bench.py").write_text((self._root / "bench.py").read_text())
        return await super().open(lane, overlay)


BROKEN = [
    (WithoutOverlay, "a_directory_holds_exactly_the_base_and_the_files_over_it"),
    (Within, "it_is_outside_of_the_users_folder"),
    (Untidy, "whatever_the_last_tenant_left_the_next_finds_its_candidate_and_no_more"),
    (Untidy, "what_another_controller_left_is_gone_too"),
    (OneForAll, "lanes_do_not_see_each_other"),
    (OneForAll, "lanes_that_are_opened_at_once_each_get_their_own"),
    (Accuser, "nothing_is_touched_until_somebody_does"),
    (Blind, "files_that_a_run_changed_or_removed_are_told_frozen_ones_and_its_own"),
    (Blind, "a_file_that_a_run_made_huge_is_told_without_being_read"),
    (FollowsLinks, "a_link_in_the_place_of_a_file_is_told_even_where_it_leads_to_the_same"),
    (NeverGone, "a_directory_that_is_gone_or_replaced_tells_nothing_of_its_files"),
    (Adopter, "what_another_controller_began_is_taken_up_as_it_is"),
    (Adopter, "what_an_agent_did_for_another_controller_is_told_to_the_next"),
    (Ruthless, "who_closes_without_having_opened_leaves_what_somebody_works_in"),
    (NoRepository, "a_bench_is_a_repository_of_its_own_with_one_commit_of_the_candidate"),
    (TwoCommits, "a_bench_is_a_repository_of_its_own_with_one_commit_of_the_candidate"),
    (Mumbling, "a_brief_is_told_and_in_a_file_beside_the_candidate"),
    (KeepsRepository, "after_a_bench_a_trials_directory_has_no_repository"),
    (ScoresInPlace, "what_scores_has_all_but_what_candidates_may_change"),
    (Deaf, "what_an_agent_wrote_is_told_with_new_files_and_gone_ones"),
    (Partial, "a_frozen_file_that_an_agent_changed_or_removed_is_told"),
    (TellsLitter, "litter_is_told_by_nobody"),
    (Lenient, "what_no_candidate_can_have_is_refused"),
    (Keeper, "close_removes_everything_and_may_be_asked_twice"),
    (Clumsy, "the_users_folder_is_as_it_was_after_all_that_tenants_and_agents_did"),
]


@pytest.mark.parametrize(("kind", "test"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_the_suite_fails_for_a_workspace_that_breaks_the_promise(tmp_path, kind, test):
    """Each of its tests has one."""
    suite = type("Broken", (TestCandidates,), {"kind": kind})()
    with pytest.raises((AssertionError, subprocess.CalledProcessError)):
        getattr(suite, f"test_{test}")(tmp_path)


def test_no_test_of_the_suite_was_never_seen_to_fail():
    tests = {name.removeprefix("test_") for name in dir(WorkspaceConformance) if name.startswith("test_")}
    assert tests == {test for _, test in BROKEN}
