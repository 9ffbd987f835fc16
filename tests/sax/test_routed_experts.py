"""The experts of tokens as clients read them."""

import json
from base64 import b64decode

import numpy as np

from sax.routed_experts import RoutedExpertIds


def test_ids_are_a_view_of_their_shape_of_one_byte_or_two() -> None:
    few = RoutedExpertIds(bytes(range(12)), 3, 2, 2, 1)
    assert few.ids.tolist() == np.arange(12).reshape(3, 2, 2).tolist()
    wide = np.asarray([[[300, 7]], [[0, 65535]]], "<u2")
    many = RoutedExpertIds(wide.tobytes(), *wide.shape, 2)
    np.testing.assert_array_equal(np.asarray(many.ids), wide)
    assert many.ids.format == "H"


def test_json_has_what_numpy_needs() -> None:
    wide = np.arange(6, dtype="<u2").reshape(3, 1, 2)
    told = json.loads(json.dumps(RoutedExpertIds(wide.tobytes(), *wide.shape, 2).as_json()))
    read = np.frombuffer(b64decode(told["data"]), told["dtype"]).reshape(told["shape"])
    np.testing.assert_array_equal(read, wide)
