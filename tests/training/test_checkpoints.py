"""Checkpoints are complete or absent: every damage is found, and earlier ones survive it."""

import hashlib
import json
import os

import pytest
import torch

from sparring.errors import DataError, DiskError
from sparring.training import checkpoints
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch

LESSON = build_demonstration_batch([([1, 2, 3, 4], [False, False, True, True])])


@pytest.fixture
def learner(tiny_policy):
    made = TorchLearner(tiny_policy(("q_proj",)))
    step(made)
    return made


def step(learner):
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.optim_step(0.01)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_checkpoint_gives_back_weights_optimizer_and_state(learner, tiny_policy, tmp_path):
    saved = checkpoints.save(tmp_path / "checkpoints", 7, learner.export_state(), {"step": 7, "position": 21})
    assert saved.name == "000007"
    assert names(saved.parent) == ["000007"]
    step(learner)
    other = TorchLearner(tiny_policy(("q_proj",)))
    assert checkpoints.load(checkpoints.find_newest(saved.parent), other) == {"step": 7, "position": 21}
    step(other)
    assert other.export_weights().fingerprint == learner.export_weights().fingerprint


def test_weights_alone_are_checked_against_the_policy(learner, tiny_policy, tmp_path):
    saved = checkpoints.save(tmp_path, 1, learner.export_state(), {})
    policy = tiny_policy(("q_proj",))
    assert checkpoints.load_weights(saved, policy).fingerprint == learner.export_weights().fingerprint
    with pytest.raises(DataError, match="does not fit this model: missing"):
        checkpoints.load_weights(saved, tiny_policy(("q_proj", "v_proj")))


def test_weights_that_were_changed_are_refused_although_they_still_are_safetensors(learner, tiny_policy, tmp_path):
    saved = checkpoints.save(tmp_path, 1, learner.export_state(), {})
    content = (saved / "weights.safetensors").read_bytes()
    (saved / "weights.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="does not have the hash"):
        checkpoints.load_weights(saved, tiny_policy(("q_proj",)))


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors"])
def test_a_pickle_is_refused_and_never_unpickled_whatever_the_manifest_contains(learner, tiny_policy, tmp_path, name):
    saved = checkpoints.save(tmp_path / "checkpoints", 1, learner.export_state(), {})
    torch.save({"tensor": Trap(tmp_path / "sprung")}, saved / name)
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["files"][name] = hashlib.sha256((saved / name).read_bytes()).hexdigest()
    (saved / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=f"{name} cannot be read as safetensors"):
        checkpoints.load(saved, learner)
    if name == "weights.safetensors":
        with pytest.raises(DataError, match="cannot be read as safetensors"):
            checkpoints.load_weights(saved, tiny_policy(("q_proj",)))
    assert not (tmp_path / "sprung").exists()


def test_the_newest_are_kept_and_named_ones_are_not_counted(learner, tmp_path):
    checkpoints.save(tmp_path, "warm_start", learner.export_state(), {})
    for number in (2, 9, 10, 11):
        checkpoints.save(tmp_path, number, learner.export_state(), {})
        checkpoints.prune(tmp_path, number, keep=2)
    assert names(tmp_path) == ["000010", "000011", "warm_start"]


def test_a_new_checkpoint_is_never_pruned_in_favor_of_a_damaged_later_one(learner, tmp_path):
    for number in (12, 14):
        checkpoints.save(tmp_path, number, learner.export_state(), {})
        (tmp_path / checkpoints.format_name(number) / "manifest.json").unlink()
    saved = checkpoints.save(tmp_path, 11, learner.export_state(), {})
    checkpoints.prune(tmp_path, 11, keep=2)
    assert checkpoints.find_newest(tmp_path) == saved


def test_every_flipped_byte_is_found_and_the_one_before_is_taken(learner, tmp_path):
    before = checkpoints.save(tmp_path, 1, learner.export_state(), {"step": 1})
    newest = checkpoints.save(tmp_path, 2, learner.export_state(), {"step": 2})
    for path in sorted(newest.iterdir()):
        content = path.read_bytes()
        damaged_places = range(len(content)) if path.name == "state.json" else (0, len(content) // 2, len(content) - 1)
        for place in damaged_places:
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x81]) + content[place + 1 :])
            with pytest.raises(DataError, match=f"{path.name if path.name != 'manifest.json' else '000002'}"):
                checkpoints.load(newest, learner)
            assert checkpoints.find_newest(tmp_path) == before
        path.write_bytes(content)
        assert checkpoints.find_newest(tmp_path) == newest


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.safetensors", "optimizer.json", "state.json", "manifest.json"]
)
def test_a_missing_file_is_named(learner, tmp_path, name):
    saved = checkpoints.save(tmp_path, 1, learner.export_state(), {})
    (saved / name).unlink()
    with pytest.raises(DataError, match=name) as refused:
        checkpoints.find_newest(tmp_path)
    assert "use another" in str(refused.value)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"format": 99, "files": {}}, "format 99"),
        ({"format": 1, "files": {}}, "does not list state.json"),
        ({"format": 1, "files": 3}, "no readable manifest"),
        ([], "no readable manifest"),
    ],
)
def test_a_strange_manifest_is_refused(learner, tmp_path, manifest, message):
    saved = checkpoints.save(tmp_path, 1, learner.export_state(), {})
    (saved / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=message):
        checkpoints.load(saved, learner)


def test_a_manifest_that_leaves_out_the_weights_does_not_get_past_the_loader(learner, tmp_path):
    saved = checkpoints.save(tmp_path, 1, learner.export_state(), {})
    manifest = json.loads((saved / "manifest.json").read_text())
    del manifest["files"]["weights.safetensors"]
    (saved / "manifest.json").write_text(json.dumps(manifest))
    (saved / "weights.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        checkpoints.load(saved, learner)


def test_without_any_checkpoint_the_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="contains no checkpoint"):
        checkpoints.find_newest(tmp_path / "absent")


class StateOnAFullDisk:
    def __init__(self, state):
        self.state = state

    def write(self, directory):
        self.state.write(directory)
        raise OSError(28, "No space left on device")


class StateThatIsKilled(StateOnAFullDisk):
    def write(self, directory):
        self.state.write(directory)
        raise KeyboardInterrupt


def test_a_failed_save_is_reported_and_leaves_earlier_checkpoints(learner, tmp_path):
    before = checkpoints.save(tmp_path, 1, learner.export_state(), {})
    with pytest.raises(DiskError, match="No space left on device"):
        checkpoints.save(tmp_path, 2, StateOnAFullDisk(learner.export_state()), {})
    assert names(tmp_path) == ["000001"]
    assert checkpoints.find_newest(tmp_path) == before


def test_a_save_that_was_killed_is_no_checkpoint_and_its_leftovers_do_not_hinder_the_next(learner, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(tmp_path, 1, StateThatIsKilled(learner.export_state()), {})
    with pytest.raises(DataError, match="contains no checkpoint"):
        checkpoints.find_newest(tmp_path)
    checkpoints.save(tmp_path, 1, learner.export_state(), {})
    assert names(tmp_path) == ["000001"]


def test_saving_again_under_a_name_replaces_it(learner, tmp_path):
    checkpoints.save(tmp_path, 1, learner.export_state(), {"position": 1})
    saved = checkpoints.save(tmp_path, 1, learner.export_state(), {"position": 2})
    assert checkpoints.load(saved, learner) == {"position": 2}
    assert names(tmp_path) == ["000001"]
