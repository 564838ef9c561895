"""anthropic."""
import anthropic

from calls import ASK, KEY, MODEL, URL, call, plain, run

claude = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)


@call
def message():
    return plain(claude.messages.create(model=MODEL, max_tokens=9, messages=ASK))


@call
def message_stream():
    with claude.messages.stream(model=MODEL, max_tokens=9, messages=ASK) as s:
        return [plain(e) for e in s]


@call
def count_tokens():
    return plain(claude.messages.count_tokens(model=MODEL, messages=ASK))


@call
def unknown_model():
    return plain(claude.messages.create(model="nope", max_tokens=9, messages=ASK))


run()
