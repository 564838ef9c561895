"""What the engines are sent, byte for byte, and what the client gets."""


def test_completion(shared, router):
    a = router.complete("hello", max_tokens=5)
    assert a.status == 200
    import expect
    assert a.json()["choices"][0]["text"] == expect.text("hello", 5)
