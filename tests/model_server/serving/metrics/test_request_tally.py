"""A distribution counts as prometheus_client's histogram does."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from model_server.serving.metrics.request_tally import BucketCounts

BOUNDS = (0.5, 1, 2.5)


@given(st.lists(st.floats(0, 4), max_size=30))
def test_it_counts_like_a_histogram_of_prometheus(values: list[float]) -> None:
    ours = BucketCounts(BOUNDS)
    theirs = Histogram("h", "", buckets=BOUNDS, registry=CollectorRegistry())
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    (family,) = theirs.collect()
    told = {each.labels["le"]: each.value for each in family.samples if "le" in each.labels}
    assert dict(ours.buckets()) == told
    assert ours.count == len(values)
    assert ours.sum == sum(values)
