import json
import urllib.request

from tests.fixtures.live_stack import LiveStack


def test_a_chat_request_is_answered_by_the_whole_stack(live_stack: LiveStack) -> None:
    body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
    request = urllib.request.Request(
        live_stack.base_url + "/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {live_stack.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["choices"][0]["finish_reason"] == "length"
