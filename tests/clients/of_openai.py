"""openai."""
import openai

from calls import ASK, KEY, MODEL, V1, call, plain, run

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
oai = openai.OpenAI(base_url=V1, api_key=KEY, max_retries=0)


def chat(**more):
    return oai.chat.completions.create(**{"model": MODEL, "messages": ASK, "max_tokens": 12, **more})


def complete(**more):
    return oai.completions.create(**{"model": MODEL, "prompt": "Once upon", "max_tokens": 9, **more})


@call
def chat_whole():
    return plain(chat())


@call
def chat_stream():
    return [plain(x) for x in chat(stream=True, stream_options={"include_usage": True})]


@call
def chat_samples():
    return plain(chat(n=3))


@call
def chat_logprobs():
    return plain(chat(logprobs=True, top_logprobs=2))


@call
def chat_tools():
    return plain(chat(tools=[TOOL], tool_choice="required"))


@call
def chat_json():
    return plain(chat(response_format={"type": "json_object"}))


@call
def completion():
    return plain(complete())


@call
def completion_stream():
    return [plain(x) for x in complete(stream=True)]


@call
def nine_prompts():
    return plain(complete(prompt=[f"prompt {i}" for i in range(9)]))


@call
def unlike_prompts():
    return plain(complete(prompt=["a", [1, 2]]))


@call
def prompt_logprobs():
    return plain(complete(echo=True, logprobs=1))


@call
def unknown_model():
    return plain(chat(model="nope"))


@call
def no_messages():
    return plain(chat(messages=[]))


@call
def max_tokens_too_large():
    return plain(chat(max_tokens=10_000_000))


@call
def max_tokens_too_large_stream():
    return [plain(x) for x in chat(max_tokens=10_000_000, stream=True)]


@call
def models():
    return [plain(m) for m in oai.models.list()]


@call
def unknown_model_of_the_list():
    return plain(oai.models.retrieve("nope"))


@call
def embeddings():
    return plain(oai.embeddings.create(model=MODEL, input="x", encoding_format="float"))


@call
def response():
    return plain(oai.responses.create(model=MODEL, input="hi"))


@call
def response_stream():
    return [plain(e) for e in oai.responses.create(model=MODEL, input="hi", stream=True)]


@call
def response_again():
    return plain(oai.responses.retrieve(oai.responses.create(model=MODEL, input="hi").id))


@call
def response_goes_on():
    return oai.responses.create(model=MODEL, input="ho", previous_response_id=oai.responses.create(model=MODEL, input="hi").id).status


@call
def response_cancelled():
    made = oai.responses.create(model=MODEL, input="hi", background=True)
    return made.status, oai.responses.cancel(made.id).status


@call
def response_unknown():
    return plain(oai.responses.retrieve("resp_none"))


run()
