"""What pdsim answers, computed apart from it: the same tokeniser, hash and words (see text.h).

    text("hi", 4)                        the four words after the prompt `hi`
    text([104, 105], 4)                  after a prompt of token ids
    text_chat({"messages": [...]}, 4)    after a chat request's body
    text(word_ids("hi the of"), 4)       after a prompt whose final words the model has said (pdsim.words)
"""

import json

MASK = (1 << 64) - 1
PRIME = 0x100000001B3
FNV0 = 0xCBF29CE484222325
GOLDEN = 0x9E3779B97F4A7C15
REST1, REST2, WORD = 0x1000000, 0x2000000, 0x3000000
VOCAB = (
    "the of and to in is it that was for on are with as they be at one have this from or had by hot "
    "word but what some we can out other were all there when up use your how said an each she which "
    "do their time if will way about many then na\u00efve \u65e5\u672c \U0001f642 \"so\" back\\slash"
).split(" ") + ["tab\tbed", "line\nfeed", "{[]}", "a/b"]
CHAT_PARTS = (
    "messages tools documents chat_template chat_template_kwargs add_generation_prompt "
    "continue_final_message mm_processor_kwargs reasoning_effort"
).split()


def request_hash(body):
    """How the paths that answer alone call a request's body, which is bytes."""
    h = FNV0
    for b in body:
        h = ((h ^ b) * PRIME) & MASK
    return "%016x" % h


def token_ids(text):
    """Three bytes a token; a rest of one or two bytes has ids of its own."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    ids = []
    for i in range(0, len(raw), 3):
        part = raw[i : i + 3]
        ids.append(int.from_bytes(part, "little") + {1: REST1, 2: REST2, 3: 0}[len(part)])
    return ids


def canon(value):
    """One spelling of a JSON value: no white space, strings as they are, between quotes.  Numbers
    are those Python writes; pdsim keeps them as the client wrote them."""
    if isinstance(value, str):
        return '"' + value + '"'
    if isinstance(value, list):
        return "[" + ",".join(canon(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(canon(k) + ":" + canon(v) for k, v in value.items()) + "}"
    return json.dumps(value)


def word_ids(text):
    """The same, but words of the model at the end of the text have their own ids."""
    tail = []
    at = text.rfind(" ")
    while at >= 0 and text[at + 1 :] in VOCAB:
        tail.insert(0, WORD + VOCAB.index(text[at + 1 :]))
        text = text[:at]
        at = text.rfind(" ")
    return token_ids(text) + tail


def chat_ids(body, sglang=False):
    """The token ids of a chat request's prompt; `body` is the parsed request."""
    body = dict(body)
    begin = body.get("add_generation_prompt", True)
    said = None
    if body.pop("continue_final_message", False) and body["messages"][-1]["role"] == "assistant":
        said = body["messages"][-1]["content"]
        body["messages"] = body["messages"][:-1]
    if begin or sglang or said is not None:
        body.pop("add_generation_prompt", None)
    parts = [k + ":" + canon(body[k]) + "\n" for k in CHAT_PARTS if body.get(k) is not None]
    return token_ids("".join(parts)) + ([] if said is None else word_ids(said))


def words(ids, n, child=0):
    """The first n words generated after these ids, for the `child`-th of n answers."""
    state = FNV0
    for i in ids:
        state = ((state ^ i) * PRIME) & MASK
    state = (state + child * GOLDEN) & MASK
    out = []
    for _ in range(n):
        x = state
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
        out.append(" " + VOCAB[x >> 58])
        state = ((state ^ (WORD + (x >> 58))) * PRIME) & MASK
    return out


def text(prompt, n=16, child=0):
    """The completion of a prompt that is a string or a list of token ids."""
    return "".join(words(token_ids(prompt) if isinstance(prompt, str) else prompt, n, child))


def text_chat(body, n=16, child=0):
    """The answer to a chat request."""
    return "".join(words(chat_ids(body), n, child))
