"""An image goes where it is done in the fewest steps, and back to where it was."""

from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_policy import ImageRequest, PlacementOutcome, VisionInstance, choose_vision, image_work

STEP = 10_000
INSTANCES = st.lists(
    st.tuples(st.integers(0, 5 * STEP), st.sampled_from([0, STEP])), min_size=1, max_size=5
).map(lambda drawn: [VisionInstance(f"vision-{i}", *pair) for i, pair in enumerate(drawn)])


def steps(instance: VisionInstance, num_patches: int) -> int:
    step = instance.step_work or image_work(num_patches)
    return -(-(instance.queued_work + image_work(num_patches)) // step)


@settings(max_examples=60)
@given(INSTANCES, st.integers(1, 9216), st.binary(min_size=32, max_size=32))
def test_no_other_instance_would_finish_in_fewer_steps(instances, num_patches, digest):
    decision = choose_vision(instances, ImageRequest(digest, num_patches))
    assert decision.outcome is PlacementOutcome.PLACED
    chosen = next(i for i in instances if i.instance_id == decision.instance_id)
    assert steps(chosen, num_patches) == min(steps(i, num_patches) for i in instances)
    assert decision == choose_vision(instances[::-1], ImageRequest(digest, num_patches))


def test_a_small_image_joins_a_step_and_a_large_one_goes_elsewhere():
    busy, idle = VisionInstance("a", 6000, STEP), VisionInstance("b", 0, STEP)
    chosen = {
        choose_vision([busy, idle], ImageRequest(bytes([i]), 100)).instance_id for i in range(32)
    }
    assert chosen == {"a", "b"}
    assert choose_vision([busy, idle], ImageRequest(b"x", 5000)).instance_id == "b"


def test_the_same_image_goes_to_the_same_instance_and_others_spread():
    fleet = [VisionInstance(f"v{i}", 0, STEP) for i in range(4)]
    places = [choose_vision(fleet, ImageRequest(bytes([i]), 500)).instance_id for i in range(200)]
    again = [choose_vision(fleet, ImageRequest(bytes([i]), 500)).instance_id for i in range(200)]
    assert places == again
    assert all(places.count(i.instance_id) > 25 for i in fleet)


def test_those_who_failed_are_left_out():
    fleet = [VisionInstance("a", 0, STEP), VisionInstance("b", 9 * STEP, STEP)]
    request = ImageRequest(b"d", 500, frozenset({"a"}))
    assert choose_vision(fleet, request).instance_id == "b"
    none = choose_vision(fleet, ImageRequest(b"d", 500, frozenset({"a", "b"})))
    assert none.outcome is PlacementOutcome.ALL_EXCLUDED
    assert choose_vision([], ImageRequest(b"d", 500)).outcome is PlacementOutcome.NO_INSTANCE


def test_large_images_are_dearer_than_as_many_patches_of_small_ones():
    assert image_work(9216) > 2 * 9 * image_work(1024) * 0.9
    assert image_work(100) == 101
