"""A page that receives, beside the events of the server, those of a test."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.conftest import Opens
from tests.browser.signed_in import sign_in
from tests.fakes.fake_api_cluster import Served

TAP = """() => {
    const real = window.fetch;
    window.connections = 0;
    window.send = (text) => window.tap.enqueue(new TextEncoder().encode(text));
    window.fetch = async (url, options) => {
        const answer = await real(url, options);
        if (url !== "/v1/stream" || !answer.ok) return answer;
        window.connections += 1;
        window.heard = "";
        const decoder = new TextDecoder();
        const copy = new TransformStream({
            start(controller) { window.tap = controller; },
            transform(chunk, controller) {
                window.heard += decoder.decode(chunk, { stream: true });
                controller.enqueue(chunk);
            },
        });
        answer.body.pipeTo(copy.writable).catch(() => {});
        return new Response(copy.readable, answer);
    };
}"""

PUSH = """([name, changes]) => {
    const texts = window.heard.split("\\n\\n").filter((each) => each.includes(`: ${name}\\n`));
    const data = JSON.parse(texts[texts.length - 1].split("\\ndata: ")[1]);
    window.send(`event: ${name}\\ndata: ${JSON.stringify({ ...data, ...changes })}\\n\\n`);
}"""


def tapped(opens: Opens, place: Served) -> Page:
    """Return the page after sign-in, when it shows data. Its console reports no errors."""
    page = opens(place)
    page.evaluate("console.error = () => {}")  # these tests expect errors
    page.evaluate(TAP)
    sign_in(page)
    expect(page.get_by_role("status").first).to_have_text("Live")
    return page


def push(page: Page, name: str, **changes: object) -> None:
    """Send the newest event of this name again, with other values of some fields."""
    page.evaluate(PUSH, [name, changes])
