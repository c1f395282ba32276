/* The service worker: what a page of this site has once fetched it has without a network too. A new build has a new name. */

const NAME = "bigtrain_lab $build";
addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil((async () => {
  for (const other of await caches.keys()) if (other.startsWith("bigtrain_lab ") && other !== NAME) await caches.delete(other);
  await clients.claim();
})()));
addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || new URL(event.request.url).origin !== location.origin) return;
  event.respondWith(caches.open(NAME).then(async (kept) => {
    const found = await kept.match(event.request, { ignoreSearch: true });
    if (found) return found;
    const answer = await fetch(event.request);
    if (answer.ok) kept.put(event.request, answer.clone());
    return answer;
  }));
});
