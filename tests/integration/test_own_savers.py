"""A checkpoint that a user's own callback saves at a batch's end: the resumed run ends as the unbroken one."""

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_tpauc import StageCallback
from lightning_tpauc.training.stages import in_order
from tests.helpers.scripts.random_runs import compare
from tests.integration.test_random_resume import make_setting

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("saver", ["first callback", "last callback", "module"])
def test_a_run_saved_by_the_user_resumes(tmp_path, saver):
    setting = make_setting(
        saved_by="hook", saver=saver, saved_at="on_train_batch_end", saved_every=7, scheduler="plateau"
    )
    outcome = compare(setting, tmp_path)
    assert outcome.kind == "equal", outcome.why
    assert outcome.resumed


def test_the_needed_callbacks_come_first():
    first, last = Callback(), Callback()
    given = [first, ModelCheckpoint(), EarlyStopping("val/tpauc"), StageCallback(), last]
    order = in_order(given)
    assert [type(c).__name__ for c in order] == [
        "StageCallback",
        "EarlyStopping",
        "Callback",
        "Callback",
        "ModelCheckpoint",
    ]
    assert order[2] is first
