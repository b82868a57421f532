"""Clients of a running server that serves a model with a chat template: serve-clients.py http://HOST:PORT

By plain sockets, so that it needs python3 alone, and by OpenAI's own client where that is installed.
"""

import concurrent.futures
import http.client
import json
import sys
import urllib.parse

URL = urllib.parse.urlsplit(sys.argv[1])
SEGMENTS = ["The Aral Sea lies between two countries.", "A seam is what is computed again.", "Where does it lie?"]


def ask(path, body):
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=120)
    connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    return response.status, response.read().decode()


def answer(path, body):
    status, text = ask(path, body)
    assert status == 200, (status, text)
    return json.loads(text)


def events(path, body):
    status, text = ask(path, body | {"stream": True, "stream_options": {"include_usage": True}})
    assert status == 200, (status, text)
    parts = text.split("\n\n")
    assert parts.pop() == "" and all(part.startswith("data: ") for part in parts), text
    assert parts.pop() == "data: [DONE]", text
    parsed = [json.loads(part[len("data: ") :]) for part in parts]
    assert parsed[-1]["choices"] == [], parsed[-1]
    return parsed[:-1], parsed[-1]["usage"]


def completions():
    body = {"prompt": "<<PIC_SEP>>".join(SEGMENTS), "max_tokens": 12, "temperature": 0}
    answer("/flush_cache", {})
    whole = [answer("/v1/completions", body) for _ in range(3)]
    assert whole[0]["choices"] == whole[1]["choices"], whole
    details = [one["usage"]["prompt_tokens_details"] for one in whole]
    assert details[0]["cached_tokens"] == 0, details  # a segment is stored from the second request on
    assert details[2]["segment_tokens"] == details[2]["cached_tokens"] > 0, details
    chunks, usage = events("/v1/completions", body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole[2]["choices"][0]["text"]
    assert usage["completion_tokens"] == whole[2]["usage"]["completion_tokens"]


def chats():
    content = [{"type": "text", "text": text, "segment": True} for text in SEGMENTS[:2]]
    body = {
        "messages": [{"role": "user", "content": content + [{"type": "text", "text": SEGMENTS[2]}]}],
        "max_tokens": 12,
        "temperature": 0,
    }
    whole = answer("/v1/chat/completions", body)
    chunks, _ = events("/v1/chat/completions", body)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant", chunks[0]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"], (text, whole)


def many():
    """More than the server takes at once: each is answered or told to come again, and answers do not depend on it."""
    bodies = [{"prompt": f"Number {i % 5}.", "max_tokens": 3, "temperature": 0} for i in range(400)]
    with concurrent.futures.ThreadPoolExecutor(400) as pool:
        got = list(pool.map(lambda body: ask("/v1/completions", body), bodies))
    assert all(status in (200, 429) for status, _ in got), {status for status, _ in got}
    for i in range(5):
        texts = {json.loads(text)["choices"][0]["text"] for status, text in got[i::5] if status == 200}
        assert len(texts) == 1, texts


def openai_client():
    try:
        import openai
    except ImportError:
        print("SKIP: python3 has no module openai: its client was not tried")
        return
    client = openai.OpenAI(base_url=f"{URL.geturl()}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    kinds = [
        (client.completions.create, {"prompt": "<<PIC_SEP>>".join(SEGMENTS)}, lambda c: c.text, lambda c: c.text),
        (
            client.chat.completions.create,
            {"messages": [{"role": "user", "content": SEGMENTS[2]}]},
            lambda c: c.message.content,
            lambda c: c.delta.content or "",
        ),
    ]
    for create, asked, text_of, part_of in kinds:
        asked = asked | {"model": model, "max_tokens": 12, "temperature": 0}
        whole = create(**asked)
        assert whole.usage.prompt_tokens_details.cached_tokens >= 0
        stream = list(create(**asked, stream=True, stream_options={"include_usage": True}))
        assert stream[-1].usage.completion_tokens == whole.usage.completion_tokens
        text = "".join(part_of(chunk.choices[0]) for chunk in stream[:-1])
        assert text == text_of(whole.choices[0]), (text, whole)
    try:
        client.completions.create(model="another", prompt="a")
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("an unknown model was answered")


for check in (completions, chats, many, openai_client):
    check()
