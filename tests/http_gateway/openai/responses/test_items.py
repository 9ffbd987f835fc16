from http_gateway.openai.responses.items import listed, to_items


def test_a_text_is_a_message_of_the_user():
    (item,) = to_items(listed("Hi"))
    assert item["id"].startswith("msg_")
    assert {**item, "id": ""} == {
        "id": "",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Hi"}],
    }


def test_an_answer_sent_back_is_text_of_the_assistants():
    (item,) = to_items([{"role": "assistant", "content": "Hi"}])
    assert item["content"] == [{"type": "output_text", "text": "Hi", "annotations": []}]


def test_what_an_item_says_is_kept():
    given = {"type": "function_call", "id": "fc_1", "call_id": "c", "status": "incomplete"}
    assert to_items([given]) == [given]
    (without,) = to_items([{"type": "function_call_output", "call_id": "c", "output": "x"}])
    assert without["id"].startswith("fco_")


def test_null_is_no_status_and_no_id():
    (item,) = to_items([{"type": "reasoning", "summary": [], "id": None, "status": None}])
    assert item["status"] == "completed"
    assert item["id"].startswith("rs_")
