"""litellm."""
import litellm

from calls import ASK, KEY, MODEL, V1, call, plain, run

litellm.suppress_debug_info = True


def chat(model=MODEL, **more):
    return litellm.completion(model="openai/" + model, api_base=V1, api_key=KEY, messages=ASK, max_retries=0, **{"max_tokens": 9, **more})


@call
def chat_whole():
    a = chat()
    return a.choices[0].message.content, plain(a.usage)


@call
def chat_stream():
    return "".join(x.choices[0].delta.content or "" for x in chat(stream=True))


@call
def unknown_model():
    return chat("nope").choices[0].message.content


@call
def max_tokens_too_large():
    return chat(max_tokens=10_000_000).choices[0].message.content


run()
