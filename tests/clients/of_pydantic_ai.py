"""pydantic-ai."""
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from calls import KEY, MODEL, V1, call, run


def agent(name=MODEL):
    return Agent(OpenAIChatModel(name, provider=OpenAIProvider(base_url=V1, api_key=KEY)))


@call
def run_sync():
    return agent().run_sync("hi").output


@call
def unknown_model():
    return agent("nope").run_sync("hi").output


run()
