"""langchain."""
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from calls import KEY, MODEL, V1, call, run


def model(name=MODEL, **more):
    return ChatOpenAI(model=name, base_url=V1, api_key=KEY, max_retries=0, **{"max_tokens": 9, **more})


@call
def invoke():
    a = model().invoke("hi")
    return a.content, a.usage_metadata


@call
def stream():
    return "".join(x.content for x in model().stream("hi"))


@call
def responses():
    return model(use_responses_api=True).invoke("hi").content


@call
def batch():
    return [a.content for a in model().batch(["a", "b", "c"])]


@call
def embeddings():
    return OpenAIEmbeddings(model=MODEL, base_url=V1, api_key=KEY, max_retries=0, check_embedding_ctx_length=False).embed_documents(["a", "b"])


@call
def unknown_model():
    return model("nope").invoke("hi").content


run()
