import pytest

from srl.errors import SpecError
from srl.services.messages import Episodes, Evaluation, Note, Update, decode, encode

MESSAGES = [
    Episodes("actor/0", "agent", [1.0, 2.5], [10, 20], {"goals": [1.0, 0.0]}),
    Episodes("actor/0", "agent", [1.0, 2.5], [10, 20], {}, [1, 0]),
    Update("trainer/0", "agent", 7, 4096, 8192, 0.5, 2.0, 0.1, {"loss": 0.25}),
    Evaluation("evaluator/0", "agent", 3, 3, [500.0], [500]),
    Note("actor/1", "warning", "slow reset"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_survives_the_journey(message):
    assert decode(encode(message)) == message


def test_decode_takes_a_view_of_a_bigger_buffer():
    data = encode(MESSAGES[1])
    assert decode(memoryview(b"xx" + data)[2:]) == MESSAGES[1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff",
        b"garbage",
        encode(MESSAGES[0])[:-3],
        encode(MESSAGES[0]).replace(b"episodes", b"episodez"),
        b"\x80\x04\x95\x0a\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
        b"\x91" * 100_000,
    ],
    ids=["empty", "bytes", "text", "cut", "unknown tag", "pickle", "deep"],
)
def test_garbage_is_a_spec_error(data):
    with pytest.raises(SpecError, match="expected one of episodes, update, evaluation, note"):
        decode(data)
